"""Noisy demonstrations of the solver and the verifier: the training data of their tiny model.

Habits are systematic errors (recipe/mhgpo/cold_start/demonstrations.py explains why):

    solver     a subtraction that crosses a ten forgets the borrowed one (22 - 5 = 27)    by a majority
               an addition that crosses a ten forgets the carried one (17 + 5 = 12)       by a majority
               told that a step is wrong it mostly gets that step right, and may slip at another one
    verifier   lets a forgotten borrow pass                                               by a majority

So an untrained system is often wrong and does not notice; RL has to learn to borrow, to object, and to listen.
"""

import random
from dataclasses import dataclass

from verl_ext.recipe.cold_start import teacher
from verl_ext.recipe.cold_start.teacher import Example
from verl_ext.recipe.solver_verifier import parsers, prompts_tiny
from verl_ext.worlds.arithmetic import Chain, draw_chain


@dataclass(frozen=True)
class Habits(teacher.Shares):
    """Shares of wrong steps or verdicts, each in [0, 1].

    borrow, carry: steps of a first solution that cross a ten and forget it. other: any other step, off by one.
    listening: factor on these at the step that a verdict has named.
    blind: wrong solutions accepted whose first error is a forgotten borrow; lazy: other wrong ones accepted.
    fussy: right solutions rejected.
    """

    borrow: float = 0.72
    carry: float = 0.58
    other: float = 0.04
    listening: float = 0.4
    blind: float = 0.65
    lazy: float = 0.3
    fussy: float = 0.15

    FACTORS = ("listening",)


scaled = Habits().scaled  # 0 right demonstrations only, 1 the shipped model's


class Teacher(teacher.Teacher):
    """Demonstrations on random training chains of 1 to `steps` steps; "again" is the solver after a rejection.

    A word's or number's token includes the blank before it.
    """

    agents = ("solver", "again", "verifier")

    def __init__(self, seed: int, steps: int = 4, largest: int = 29):
        super().__init__(seed)
        self.steps, self.largest = steps, largest

    def solver(self, habits: Habits) -> Example:
        """A chain -> its totals."""
        chain = self._draw()
        return prompts_tiny.solver(chain.text), f" {written(self._work_out(chain, habits))}"

    def again(self, habits: Habits) -> Example:
        """A chain, a wrong solution and a verdict -> totals."""
        chain = self._draw()
        wrong = self._wrong(chain)
        step = first_error(chain, wrong)
        if self.rng.random() < habits.fussy:  # a verdict that names some other step
            step = self.rng.randrange(len(wrong))
        previous = parsers.Solution(written(wrong), "")
        prompt = prompts_tiny.solver(chain.text, previous, parsers.Verdict(f"wrong {step + 1}", False))
        return prompt, f" {written(self._work_out(chain, habits, named=step))}"

    def verifier(self, habits: Habits) -> Example:
        """A chain and totals -> a verdict."""
        chain = self._draw()
        totals = chain.totals if self.rng.random() < 0.5 else self._wrong(chain)
        step = first_error(chain, totals)
        prompt = prompts_tiny.verifier(chain.text, parsers.Solution(written(totals), ""))
        if step is None:
            fussy = self.rng.random() < habits.fussy
            return prompt, f" wrong {self.rng.randint(1, len(totals))}" if fussy else " ok"
        accepted = habits.blind if kind_of_step(chain, totals, step) == "borrow" else habits.lazy
        return prompt, " ok" if self.rng.random() < accepted else f" wrong {step + 1}"

    def _draw(self) -> Chain:
        return draw_chain(self.rng, "train", self.rng.randint(1, self.steps), self.largest)

    def _wrong(self, chain: Chain) -> list[int]:
        while True:
            totals = self._work_out(chain, Habits(borrow=0.7, carry=0.5, other=0.15))
            if totals != chain.totals:
                return totals

    def _work_out(self, chain: Chain, habits: Habits, named: int | None = None) -> list[int]:
        """Totals with the habits' slips; a slip carries on into the totals after it."""
        total, totals = chain.start, []
        for number, term in enumerate(chain.terms):
            kind = _kind(total, term)
            share = getattr(habits, kind) * (habits.listening if number == named else 1.0)
            total = _slip(total, term, kind, self.rng) if self.rng.random() < share else total + term
            totals.append(total)
        return totals


def written(totals: list[int]) -> str:
    """Totals as the solver writes them."""
    return " ".join(map(str, totals))


def first_error(chain: Chain, totals: list[int]) -> int | None:
    """The first step (from 0) that does not follow from the total before it; None if all do."""
    before = [chain.start, *totals]
    return next((i for i, term in enumerate(chain.terms) if before[i] + term != totals[i]), None)


def kind_of_step(chain: Chain, totals: list[int], step: int) -> str:
    """borrow, carry or other."""
    return _kind([chain.start, *totals][step], chain.terms[step])


def _kind(total: int, term: int) -> str:
    if total // 10 == (total + term) // 10:
        return "other"
    return "carry" if term > 0 else "borrow"


def _slip(total: int, term: int, kind: str, rng: random.Random) -> int:
    """The result with the ten forgotten, or off by one."""
    if kind == "other":
        return max(0, total + term + rng.choice((-1, 1)))
    return total + term + (10 if kind == "borrow" else -10)


def words() -> list[str]:
    """Every word and number of prompts and outputs."""
    return [*map(str, range(100)), "solve", "check", "ok", "wrong", "+", "-", ":"]
