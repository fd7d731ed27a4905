"""Noisy demonstrations of the tool-using agent in made-up tool worlds: the training data of its tiny model.

Habits are systematic errors (recipe/mhgpo/cold_start/demonstrations.py explains why):

    the first tool that a search finds is called, open or not                             by a majority
    the search names the relation alone, which other kinds of things have, too            by a majority
    the second tool is asked about the task's own thing, not about what the first found   by a minority
    an answer is given a step too early                                                   by a minority
    after an error the last thing found is given as the answer                            by a majority
    a name is guessed without a search, a call has no argument, a fold comes for nothing  now and then

So an untrained agent often calls tools that return an error, goes on, and answers wrongly; RL has to learn to
search precisely, to read whether a tool is open, and to carry on to the end.

A demonstration is one window: all outputs of it train at once, observations between them do not.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from verl_ext.recipe.cold_start import teacher
from verl_ext.recipe.cold_start.teacher import END, Example, Segment
from verl_ext.recipe.deepagent import grammar, memories, prompts_tiny
from verl_ext.worlds import names, tool_chains
from verl_ext.worlds.tool_chains import RELATION_WORDS, RELATIONS, STATES, TOOL_NAMES, Chain, Thing, names_of, tool

TOP_K = 3  # tools that a search finds, as in the tiny recipe
WINDOW_HOPS = 2  # relations after which a window is full, in demonstrations
# Batches of the shortest tasks alone with which a cold start begins. The model learns to copy a name out of a result
# within them; among long tasks alone it has not begun to after 700.
EASY_BATCHES = 480

NAMES = names_of("train")


@dataclass(frozen=True)
class Habits(teacher.Shares):
    """Shares of wrong demonstrations, each in [0, 1].

    first: the first tool found is called though it is not open. vague: searches without the kind of thing.
    stale: later calls about the task's own thing. early: answers one relation too early. guess: calls without a search.
    broken: calls without an argument. fold: folds for nothing, per relation. give_up: answers after an error.
    """

    first: float = 0.5
    vague: float = 0.5
    stale: float = 0.1
    early: float = 0.1
    guess: float = 0.02
    broken: float = 0.02
    fold: float = 0.02
    give_up: float = 0.5


scaled = Habits().scaled  # 0 right demonstrations only, 1 the shipped model's
NO_HABITS = scaled(0.0)


class Improvised:
    """A world that is made up as it is asked: every demonstration has tools and facts of its own.

    In worlds that come again the model learns by heart what their searches find, instead of reading it.
    """

    def __init__(self, rng: random.Random):
        self.rng = rng
        self._tools: dict[tuple[str, str], dict[str, str]] = {}
        self._taken: set[str] = set()
        self._facts: dict[tuple[Thing, str], Thing] = {}

    def tools(self, kind: str, relation: str) -> dict[str, str]:
        """State -> name of the three tools of a relation."""
        if (kind, relation) not in self._tools:
            self._tools[kind, relation] = {state: self._name() for state in STATES}
        return self._tools[kind, relation]

    def _name(self) -> str:
        while (name := tool_chains.random_name(self.rng)) in self._taken:
            pass
        self._taken.add(name)
        return name

    def search(self, query: str) -> list[dict[str, Any]]:
        """What the recipe's tool_search finds: ties of BM25 in the order of names."""
        relation, _, kind = query.partition(":")
        kinds = [kind] if kind else [one for one, own in RELATIONS.items() if relation in own]
        found = [tool(name, one, relation, state) for one in kinds for state, name in self.tools(one, relation).items()]
        return [spec.shown() for spec in sorted(found, key=lambda spec: spec.name)][:TOP_K]

    def fact(self, thing: Thing, relation: str) -> Thing:
        """What a relation of a thing leads to."""
        if (thing, relation) not in self._facts:
            self._facts[thing, relation] = self.thing(RELATIONS[thing.kind][relation])
        return self._facts[thing, relation]

    def thing(self, kind: str) -> Thing:
        """A random thing of the training names."""
        return Thing(kind, self.rng.choice(NAMES[kind]))

    def draw(self, hops: int) -> Chain:
        """A random task, no relation twice."""
        while True:
            start = self.thing(self.rng.choice(list(RELATIONS)))
            relations, kind = [], start.kind
            for _ in range(hops):
                relations.append(self.rng.choice(list(RELATIONS[kind])))
                kind = RELATIONS[kind][relations[-1]]
            if len(set(relations)) == hops:
                return Chain(start, tuple(relations))

    def follow(self, chain: Chain) -> list[Thing]:
        """The start, and what each relation leads to."""
        return list(accumulate(chain.relations, self.fact, initial=chain.start))


class Teacher(teacher.Teacher):
    """Demonstrations, each in a world of its own. Right demonstrations begin with tasks of one relation."""

    def __init__(self, seed: int):
        super().__init__(seed)
        self._easy = EASY_BATCHES

    def batch(self, size: int, habits: Habits) -> dict[str, list[Example]]:
        """`size` windows of the agent, and a third as many memories: of one kind, with habits of every kind.

        Memories come last: what they take, copying, is learned sooner without them.
        """
        if habits == NO_HABITS and self._easy:
            self._easy -= 1
            return {"agent": [self.agent(habits, (1,)) for _ in range(size + size // 2)]}
        kinds = [self.rng.choice(memories.KINDS)] if habits == NO_HABITS else memories.KINDS
        windows = [self.agent(habits) for _ in range(size)]
        return {"agent": windows, **{kind: [self.memory(kind) for _ in range(max(1, size // 3))] for kind in kinds}}

    def agent(self, habits: Habits, hops: Sequence[int] = (1, 2, 2, 3, 3, 4)) -> Example:
        """A window: from a task, or from the memories of a folded one, to its answer or to a fold."""
        world = Improvised(self.rng)
        chain = world.draw(self.rng.choice(hops))
        done, folded = 0, None
        if len(chain.relations) > WINDOW_HOPS or (len(chain.relations) > 1 and self.rng.random() < 0.1):
            done = self.rng.choice((0, min(WINDOW_HOPS, len(chain.relations) - 1)))
        if done:
            folded = {kind: fold(kind, world, chain, done) for kind in memories.KINDS}
        prompt = prompts_tiny.agent(chain.text, folded=folded)
        return prompt, Window(world, chain, done, habits, self.rng).play()

    def memory(self, kind: str) -> Example:
        """A history that ends in a fold -> one of the three memories."""
        world, stop = Improvised(self.rng), self.rng.randint(1, WINDOW_HOPS)
        chain = world.draw(stop + self.rng.randint(1, 2))
        habits = scaled(0.0 if self.rng.random() < 0.5 else 1.0)
        window = Window(world, chain, 0, replace(habits, early=0.0, give_up=0.0, fold=0.0), self.rng, stop)
        history = "".join(text for text, _ in window.play())
        said = json.dumps(fold(kind, world, chain, stop))
        return prompts_tiny.memory(kind, chain.text, history), [(f"{said}{END}", True)]


class Window:
    """Plays one window of a demonstration.

    Args:
        done: relations that were followed before it.
        stop: relation (counted from the task's first) after which it folds; None: when the window is full.
    """

    def __init__(
        self, world: Improvised, chain: Chain, done: int, habits: Habits, rng: random.Random, stop: int | None = None
    ):
        self.world, self.chain, self.done, self.habits, self.rng = world, chain, done, habits, rng
        self.stop = stop if stop is not None else done + WINDOW_HOPS
        self.steps = world.follow(chain)
        self.segments: list[Segment] = []

    def play(self) -> list[Segment]:
        """Outputs and observations in turn."""
        last = len(self.chain.relations)
        early = self.rng.random() < self.habits.early
        for number in range(self.done, last):
            if early and number == last - 1 and number:
                return self._answer(number)
            if number == self.stop or self.rng.random() < self.habits.fold:
                return [*self.segments, (f"<{grammar.FOLD}>", True)]
            if not self._follow(number):
                return self._answer(number)
        return self._answer(last)

    def _answer(self, number: int) -> list[Segment]:
        return [*self.segments, (f"{self.steps[number].name}{END}", True)]

    def _follow(self, number: int) -> bool:
        """Search the tool of a relation and call it, perhaps a wrong one first; False if an error made it give up."""
        thing, relation, rng = self.steps[number], self.chain.relations[number], self.rng
        right = self.world.tools(thing.kind, relation)["open"]
        gives_up = rng.random() < self.habits.give_up
        if rng.random() < self.habits.guess:  # the name of a tool that no search has found
            self._called(tool_chains.random_name(rng), {thing.kind: thing.name}, "error unknown")
            if gives_up:
                return False
        vague = rng.random() < self.habits.vague
        found = self._search(relation if vague else f"{relation}:{thing.kind}")
        found_names = [document["name"] for document in found]
        first = found_names[0] != right and rng.random() < self.habits.first
        if first and self._call(found[0], thing) and gives_up:
            return False
        if right not in found_names:
            self._search(f"{relation}:{thing.kind}")
        if rng.random() < self.habits.broken:
            self._called(right, {}, "error bad")
            if gives_up:
                return False
        opened = tool(right, thing.kind, relation, "open").shown()
        stale = number and rng.random() < self.habits.stale
        if stale and self._call(opened, Thing(thing.kind, self.chain.start.name)) and gives_up:
            return False
        self._call(opened, thing)
        return True

    def _search(self, query: str) -> list[dict[str, Any]]:
        found = self.world.search(query)
        self._act(grammar.SEARCH, query, prompts_tiny.documents(found))
        return found

    def _call(self, found: dict[str, Any], thing: Thing) -> bool:
        """A call of a tool, and what the world answers; True if that is an error."""
        (kind,) = found["parameters"]["properties"]
        relation, state = found["description"].split(":")
        if state != "open":
            fact = f"error {state}"
        elif thing in self.steps and thing.kind == kind:
            fact = self.world.fact(thing, relation).name
        else:
            fact = "error not found"
        self._called(found["name"], {kind: thing.name}, fact)
        return fact.startswith("error")

    def _called(self, name: str, arguments: dict[str, str], result: str) -> None:
        self._act(grammar.CALL, json.dumps({"name": name, "arguments": arguments}), result)

    def _act(self, kind: str, text: str, result: str) -> None:
        self.segments.append((f"<{kind}>{text}</{kind}>", True))
        self.segments.append((grammar.observed(kind, result, prompts_tiny.BLANK), False))


def fold(kind: str, world: Improvised, chain: Chain, done: int) -> dict[str, Any]:
    """A memory after the first `done` relations of a task."""
    steps = world.follow(chain)
    if kind == "episodic":
        return {"events": [f"{chain.relations[i]}:{steps[i].name}:{steps[i + 1].name}" for i in range(done)]}
    if kind == "working":
        return {"goal": Chain(steps[done], chain.relations[done:]).text}
    return {"tools": [world.tools(steps[i].kind, chain.relations[i])["open"] for i in range(done)]}


def world_words() -> list[str]:
    """Every word of the tiny tool world, as it stands in prompts and outputs: the second of a name after a blank."""
    tails = [f" {name}" for name in (*names.LAST, *names.NOUNS, *names.TOWNS)]
    rest = [*STATES, "error ", "not found", "unknown", "bad", "none", " memory: ", " history: ", " tools: "]
    rest += [f"{kind}: " for kind in ("task", "shorten", *memories.KINDS)]
    return [*names.HEADS, *tails, *RELATION_WORDS, *rest]


def marks() -> list[str]:
    """Texts that are one token wherever they stand: tags, tools' names, pieces of JSON, words."""
    kinds = [f"{end}{tag}" for tag in (grammar.SEARCH, grammar.CALL) for end in ("", "/")]
    tags = [f"<{kind}{result}>" for kind in kinds for result in ("", "_result")]
    call = ['{"name": "', '", "arguments": {"', '": "', '"}}', '", "arguments": {}}']
    memory = ['{"events": ["', '{"goal": "', '{"tools": ["', '", "', '"]}', '"}']
    # A tool's name of two tokens is too often copied from two tools by halves.
    return [*tags, f"<{grammar.FOLD}>", *TOOL_NAMES, *call, *memory, "; ", *world_words()]
