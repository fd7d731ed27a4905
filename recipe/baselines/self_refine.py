"""Self-Refine: the agent's answer is criticised and rewritten, until the critic has nothing to say.

"Self-Refine: Iterative Refinement with Self-Feedback", Madaan et al. (2023), arXiv 2303.17651. Deviation: the first
answer comes from a ReAct sequence, so that it has the same tools; criticism and refinement read its results.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from verl_ext.mas import Agent, Task
from verl_ext.mas.options import at_least
from verl_ext.recipe.baselines import prompts
from verl_ext.recipe.smurfs.baselines import Baseline, Work
from verl_ext.recipe.smurfs.scoring import read_final

GOOD = "it is good"


class SelfRefine(Baseline):
    """`agent` drafts, `critic` criticises, `refiner` rewrites.

    Args:
        rounds: of criticism, at most (the paper: 4).
        others: see `Baseline`.
    """

    modules = {"faithful": prompts}
    prompt = "agent"

    def __init__(self, rounds: int = 4, **others: Any):
        at_least(0, rounds=rounds)
        super().__init__(**others)
        self.rounds = rounds

    def others(self) -> dict[str, Agent]:
        """The critic and the refiner."""
        refiner = Agent(partial(self.prompts.refiner, **self.form), partial(read_final, **self.form))
        return {"critic": Agent(self.prompts.critic), "refiner": refiner}

    async def play(self, task: Task, ctx: Any) -> Work:
        """Draft, criticise, refine."""
        work = Work(task)
        tools = await self.documents(ctx, task, task.question)
        turn = await self.sequence(ctx, work, tools, question=task.question)
        self.end(work, turn, finished=work.spent < self.budget)
        before: list[tuple[str, str]] = []
        for _ in range(self.rounds):
            seen = {"question": task.question, "log": work.log, "answer": work.answer}
            feedback = await self.heard(ctx, work, ctx.call("critic", **seen), "")
            if not feedback or GOOD in feedback.lower():
                break
            refined = ctx.call("refiner", **seen, feedback=feedback, before=list(before))
            before.append((work.answer, feedback))
            work.answer = await self.heard(ctx, work, refined, work.answer) or work.answer
        return work
