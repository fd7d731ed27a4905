"""Noisy demonstrations of the Smurfs in made-up tool worlds: the training data of their tiny model.

Habits are systematic errors (recipe/mhgpo/cold_start/demonstrations.py explains why):

    the planner hands the question on whole, as one sub-task                     by a majority
    the executor takes the first tool of the list, open or not                   by a majority
    the verifier is content with any answer                                      by a majority
    the final answer is that of the first sub-task                               by a majority

The search's rules save much of it: a tool that errs is popped, and a sub-task that is not solved goes deeper. What is
left for RL is to plan, to read whether a tool is open, and to see whether an answer is of the kind that was asked for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from verl_ext.recipe.cold_start import teacher
from verl_ext.recipe.cold_start.teacher import Example
from verl_ext.recipe.deepagent.cold_start import demonstrations as tool_demos
from verl_ext.recipe.deepagent.cold_start.demonstrations import Improvised
from verl_ext.recipe.smurfs import prompts_tiny
from verl_ext.recipe.smurfs.scoring import FINAL
from verl_ext.recipe.smurfs.search import Element
from verl_ext.worlds.tool_chains import RELATIONS, TOOL_NAMES, Chain, tool

TOP_K = 3  # tools that a sub-task's search finds, as in the tiny recipe


@dataclass(frozen=True)
class Habits(teacher.Shares):
    """Shares of wrong demonstrations, each in [0, 1].

    whole: plans of one sub-task. short: plans without the last relation. first: the first tool, whatever its state.
    content: answers of another kind accepted. fussy: right answers rejected. early: the first sub-task's answer.
    """

    whole: float = 0.6
    short: float = 0.05
    first: float = 0.6
    content: float = 0.6
    fussy: float = 0.1
    early: float = 0.6


scaled = Habits().scaled  # 0 right demonstrations only, 1 the shipped model's


class Teacher(teacher.Teacher):
    """Demonstrations, each in a world of its own."""

    agents = ("planner", "thought", "action", "arguments", "answer", "verifier", "final")
    stream = "smurfs"

    def planner(self, habits: Habits) -> Example:
        """A question -> sub-tasks of one relation each."""
        chain = Improvised(self.rng).draw(self.rng.choice((1, 2, 3)))
        tasks = subtasks(chain)
        if len(tasks) > 1 and self.rng.random() < habits.whole:
            tasks = [chain.text]
        elif len(tasks) > 1 and self.rng.random() < habits.short:
            tasks = tasks[:-1]
        return prompts_tiny.planner(chain.text), json.dumps({"Tasks": tasks})

    def thought(self, habits: Habits) -> Example:
        """A sub-task and open tools -> the tool that is open, if there is one."""
        world, chain, task = self._subtask()
        kind, relation = kind_and_relation(task)
        documents = [tool(name, kind, relation, state).shown() for state, name in world.tools(kind, relation).items()]
        documents.sort(key=lambda document: document["name"])
        for _ in range(self.rng.choice((0, 0, 0, 1, 2))):  # popped: not the open one
            shut = [document for document in documents if ":open" not in document["description"]]
            documents.remove(self.rng.choice(shut))
        right = next(document for document in documents if ":open" in document["description"])
        chosen = documents[0] if self.rng.random() < habits.first else right
        state = chosen["description"].split(":")[1]
        return prompts_tiny.thought(task, (), documents, "", ()), f"{state}:{chosen['name']}"

    def action(self, habits: Habits) -> Example:
        """A thought -> the name in it."""
        world, chain, task = self._subtask()
        state, name = self.rng.choice(list(world.tools(*kind_and_relation(task)).items()))
        return prompts_tiny.action(task, f"{state}:{name}", [], ()), name

    def arguments(self, habits: Habits) -> Example:
        """A sub-task, what was found, what the tool asks for -> its argument."""
        world, chain, task = self._subtask()
        kind, relation = kind_and_relation(task)
        begins = task.startswith(f"{chain.start.kind}:{chain.start.name}")
        # A sub-task that names its thing is the first one, or has been answered in part: then what was found counts.
        partly = begins and len(task.split(":")) > 3 and self.rng.random() < 0.5
        thing = chain.start if begins and not partly else world.thing(kind)
        if partly:
            kind, thing = RELATIONS[kind][relation], world.thing(RELATIONS[kind][relation])
        found = "" if begins and not partly else thing.name
        memory = [Element("t", "", found)] if found else []
        spec = tool("t", kind, relation, "open").shown()
        return prompts_tiny.arguments(task, memory, spec, ()), json.dumps({kind: thing.name})

    def answer(self, habits: Habits) -> Example:
        """A tool's result -> the same."""
        world, chain, task = self._subtask()
        kind, relation = kind_and_relation(task)
        name = world.thing(RELATIONS[kind][relation]).name
        return prompts_tiny.answer(task, name, ()), name

    def verifier(self, habits: Habits) -> Example:
        """A sub-task and an answer -> whether the answer is of the kind that its last relation leads to."""
        world, chain, task = self._subtask()
        kinds = kinds_of(task)
        wrong = [kind for kind in RELATIONS if kind != kinds[-1]]
        right = self.rng.random() < 0.5
        thing = world.thing(kinds[-1] if right else self.rng.choice(wrong))
        solved = self.rng.random() >= habits.fussy if right else self.rng.random() < habits.content
        return prompts_tiny.verifier(task, thing.name), json.dumps({"Status": int(solved)})

    def final(self, habits: Habits) -> Example:
        """The answers of the sub-tasks -> the last of them."""
        world = Improvised(self.rng)
        chain = world.draw(self.rng.choice((1, 2, 3)))
        tasks, names = subtasks(chain), [thing.name for thing in world.follow(chain)[1:]]
        if len(tasks) > 1 and self.rng.random() < 0.3:  # a plan of one sub-task, or of fewer
            tasks, names = tasks[:1], names[-1:]
        said = names[0] if self.rng.random() < habits.early else names[-1]
        return prompts_tiny.final(chain.text, list(zip(tasks, names, strict=True))), f"{FINAL} {said}"

    def _subtask(self) -> tuple[Improvised, Chain, str]:
        """A world, a question in it, and one of its sub-tasks; sometimes the question as a whole."""
        world = Improvised(self.rng)
        chain = world.draw(self.rng.choice((1, 2, 3)))
        tasks = subtasks(chain)
        return world, chain, chain.text if self.rng.random() < 0.15 else self.rng.choice(tasks)


def subtasks(chain: Chain) -> list[str]:
    """One per relation: `film:Amber Harbor:director`, then `person:birthplace`: of what was found before."""
    kinds = kinds_of(chain.text)
    first = Chain(chain.start, chain.relations[:1]).text
    return [first, *(f"{kind}:{relation}" for kind, relation in zip(kinds, chain.relations[1:], strict=False))]


def kinds_of(task: str) -> list[str]:
    """The kind of thing that each relation of a sub-task leads to."""
    parts = task.split(":")
    kind, relations = parts[0], parts[2:] if len(parts) > 2 else parts[1:]
    found = []
    for relation in relations:
        kind = RELATIONS[kind][relation]
        found.append(kind)
    return found


def kind_and_relation(task: str) -> tuple[str, str]:
    """What a sub-task's first tool is asked: the relation of a thing of this kind."""
    parts = task.split(":")
    return parts[0], parts[2] if len(parts) > 2 else parts[1]


def marks() -> list[str]:
    """Texts that are one token wherever they stand: tools' names, pieces of JSON, words."""
    pieces = ['{"Tasks": ["', '", "', '"]}', '{"', '": "', '"}', '{"Status": 0}', '{"Status": 1}', "; "]
    roles = ("plan", "think", "pick", "fill", "read", "verify", "final")
    said = [" tools: ", " after: ", " tool: ", " result: ", " answer: ", f"{FINAL} "]
    return [*TOOL_NAMES, *pieces, *tool_demos.world_words(), *(f"{role}: " for role in roles), *said]
