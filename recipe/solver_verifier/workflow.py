"""Solver -> verifier -> solver -> … : a cyclic system that ends early when the verifier accepts a solution."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from verl_ext.mas import Agent, Task, Workflow
from verl_ext.mas.options import at_least
from verl_ext.mas.prompts import prompts_of
from verl_ext.recipe.solver_verifier import parsers, prompts, prompts_tiny
from verl_ext.rewards.truth import targets_of

PROMPTS: dict[str, ModuleType] = {"examples": prompts, "tiny": prompts_tiny}


class SolveAndVerify(Workflow):
    """One problem: solutions and verdicts in turn. Shared reward: is the last solution's number right.

    The verdict on the last solution that is allowed would change nothing and is not asked for.

    Args:
        max_solutions: solutions at most. 1 is the solver alone: the single-agent baseline.
        unparsable: R_spe of output that breaks its agent's format, <= 0.
        prompts: examples (for instruction-tuned models; the verifier decides between `right` and `wrong`), tiny (the
            compact form that the embedded tiny model was trained on: `ok` or `wrong 2`), or a YAML file with texts of
            your own (`mas/prompts.py`).
    """

    headline = "em"
    needs_truth = True

    def __init__(self, max_solutions: int = 3, unparsable: float = -0.5, prompts: str = "tiny"):
        at_least(1, max_solutions=max_solutions)
        if unparsable > 0:
            raise ValueError(f"mas.workflow.unparsable={unparsable} must be <= 0: it is a penalty")
        self.max_solutions, self.unparsable = max_solutions, unparsable
        ask = prompts_of(prompts, PROMPTS)
        self.agents = {"solver": Agent(ask.solver, parsers.solution, self._penalty)}
        if max_solutions > 1:
            verdicts = getattr(ask, "VERDICTS", None)
            self.agents["verifier"] = Agent(
                *(ask.verifier, parsers.verdict, self._penalty), choices=(lambda **_: verdicts) if verdicts else None
            )

    def _penalty(self, text: str, value: Any, parsable: bool, /, **_: Any) -> tuple[float, dict[str, float]]:
        counted = {"accepted": float(value.accepted)} if hasattr(value, "accepted") else {}
        return (0.0 if parsable else self.unparsable), counted

    async def run(self, task: Task, ctx: Any) -> parsers.Solution:
        solution, verdict = None, None
        for number in range(1, self.max_solutions + 1):
            solution = await ctx.call("solver", problem=task.question, previous=solution, verdict=verdict)
            if number < self.max_solutions:
                verdict = await ctx.call("verifier", problem=task.question, solution=solution)
                if verdict.accepted:
                    break
        return solution._replace(number=number)

    def reward(self, task: Task, result: parsers.Solution) -> tuple[float, dict[str, float]]:
        correct = float(result.answer in targets_of(task.ground_truth, f"row {task.index}"))
        return correct, {"em": correct, "solutions": float(result.number)}
