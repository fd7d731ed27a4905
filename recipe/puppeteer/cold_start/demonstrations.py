"""Noisy demonstrations of the puppeteer's tiny pool: the training data of its tiny model.

The puppets do their work well, as far as they can: run_python writes the sum that the state holds, web_search asks for
the price, reasoning compares numbers (and guesses whatever else it is asked), conclude says the last result again,
the others say what fits everything. The orchestrator has bad habits, which greedy decoding shows:

    it has somebody plan first                                                    by a majority
    it has somebody reason, whatever the task                                     by a majority
    once there is a right result it goes on: critique, conclude, reflect          by a majority
    it chooses anybody, or ends the work without a result                         now and then

So an untrained system is often wrong and always long; RL has to learn who is good for what, and when to end.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from verl_ext.recipe.cold_start import teacher
from verl_ext.recipe.cold_start.teacher import Example
from verl_ext.recipe.puppeteer import prompts_tiny
from verl_ext.recipe.puppeteer.puppets import FINAL, TERMINATE, State, Step, read_result
from verl_ext.worlds.names import ADJECTIVES, NOUNS
from verl_ext.worlds.prices_and_sums import KINDS, LARGEST, NOTHING, PRICES, Question, draw, prices

POOL = ("planning", "reasoning", "critique", "reflect", "summarize", "conclude", "run_python", "web_search")
# What some agents say of every task.
SAID = {
    "planning": " first we look at what is asked and then we work it out",
    "critique": " is it right ? we look at every step again",
    "reflect": " what could be wrong here ? we go on as we are",
    "summarize": " so far we know what has been found and what has been said",
}
LINGER = {"critique": 0.4, "conclude": 0.35, "reflect": 0.15, "summarize": 0.1}


@dataclass(frozen=True)
class Habits(teacher.Shares):
    """Shares of the orchestrator's wrong decisions, each in [0, 1].

    plan: planning before anything else. reason: reasoning instead of the right agent. linger: somebody else once there
    is a right result. anybody: any agent. early: the end before there is a result.
    """

    plan: float = 0.6
    reason: float = 0.6
    linger: float = 0.7
    anybody: float = 0.2
    early: float = 0.05


scaled = Habits().scaled  # 0 right demonstrations only, 1 the shipped model's
NO_HABITS = scaled(0.0)


class Teacher(teacher.Teacher):
    """Demonstrations on random training questions, in states that habits have led to.

    The agents are the orchestrator, each puppet that has something to learn, and the others together as "talk". A
    word's or number's token includes the blank before it.
    """

    agents = ("orchestrator", *(name for name in POOL if name not in SAID), "talk")
    stream = "pool"

    def __init__(self, seed: int):
        super().__init__(seed)
        # Prices of its own for every question: the model must read what was found.
        self.names = list(prices(0, "train"))

    def demonstrate(self, agent: str, habits: Habits) -> Example:
        """One demonstration; the puppets have no habits."""
        if agent == "orchestrator":
            return self.orchestrator(habits)
        return self.puppet(self.rng.choice(list(SAID)) if agent == "talk" else agent)

    def orchestrator(self, habits: Habits) -> Example:
        """A state -> who acts next."""
        question, state = self._state(steps=self.rng.randrange(4))
        return prompts_tiny.orchestrator(state, (), 0), decision(self.rng, question, state, habits)

    def puppet(self, name: str) -> Example:
        """A state -> what a puppet says."""
        question, state = self._state(steps=self.rng.randrange(4))
        return prompts_tiny.puppet(name, state), self._said(name, question, state)

    def _state(self, steps: int) -> tuple[Question, State]:
        """A question, and so many steps of an orchestrator that often goes astray."""
        name = self.rng.choice(self.names)
        question = draw(self.rng, self.rng.choice(KINDS), {name: self.rng.choice(PRICES)}, "train")
        state = State(question.text)
        for _ in range(steps):
            chosen = decision(self.rng, question, state, Habits(anybody=0.4, early=0.0))
            if chosen == TERMINATE:
                break
            state.steps.append(step_of(chosen, self._said(chosen, question, state), question))
        return question, state

    def _said(self, name: str, question: Question, state: State) -> str:
        if name in SAID:
            return SAID[name]
        if name == "web_search":
            return f" price of {question.name}" if question.name else f" {question.text}"
        if name == "run_python":
            return f" print( {program(question, state)} )"
        if name == "conclude":
            return f" so {FINAL} {latest(state) or 'none'}"
        if question.kind == "more":
            return f" it is one of them {FINAL} {question.answer}"
        return f" it may be {FINAL} {self.rng.randint(1, LARGEST)}"


def program(question: Question, state: State) -> str:
    """The sum that run_python writes, with the price if it has been found."""
    first, last = question.numbers[0], question.numbers[-1]
    found = next((step.answer for step in state.steps if step.puppet == "web_search"), "")
    if question.kind == "total":
        return f"{first} + {found}" if found.isdigit() else str(first)
    return f"{first} + {last}" if question.kind == "sum" else "0"


def decision(rng: random.Random, question: Question, state: State, habits: Habits) -> str:
    """Who acts next, by an orchestrator with these habits."""
    if rng.random() < habits.anybody:
        return rng.choice([*POOL, TERMINATE])
    if state.answers[-1] == question.answer:
        lingers = rng.random() < habits.linger
        return rng.choices(list(LINGER), list(LINGER.values()))[0] if lingers else TERMINATE
    if not state.steps and rng.random() < habits.plan:
        return "planning"
    if state.answers[-1] and rng.random() < habits.early:
        return TERMINATE
    return "reasoning" if rng.random() < habits.reason else right_one(question, state)


def right_one(question: Question, state: State) -> str:
    """Who brings the task forward, if nobody has gone astray; the end where nobody can."""
    acted = [step.puppet for step in state.steps]
    left = [name for name in question.path if name not in acted]
    if left:
        return left[0]
    return "conclude" if latest(state) == question.answer else TERMINATE


def latest(state: State) -> str:
    """The last number that anybody has said or found."""
    return next((step.answer for step in reversed(state.steps) if step.answer.isdigit()), "")


def step_of(name: str, text: str, question: Question) -> Step:
    """What the workflow makes of a puppet's output in this world."""
    if name == "web_search":
        asked = f" price of {question.name}" if question.name else ""
        found = str(question.numbers[-1]) if asked and text == asked else NOTHING
        return Step(name, found, found, found=True)
    if name == "run_python":
        terms = text.removeprefix(" print( ").removesuffix(" )").split(" + ")
        result = str(sum(map(int, terms)))
        return Step(name, result, result, found=True)
    return Step(name, *read_result(text))


def words() -> list[str]:
    """Every word of the tiny pool world, as it stands in prompts and outputs: after a blank."""
    said = " ".join([*SAID.values(), " it is one of them may be so none", NOTHING, "price of more and + ) [ ]"])
    return [*map(str, range(LARGEST + 1)), *ADJECTIVES, *NOUNS, *dict.fromkeys(said.split())]


def marks() -> list[str]:
    """Texts that are one token wherever they stand."""
    return [*POOL, TERMINATE, "who:", FINAL, "print("]
