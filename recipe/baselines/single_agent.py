"""A single agent that is given no tools, but searches for them: the single agents of JoyAgents-R1's Table 1.

"JoyAgents-R1", Appendix, Template 6. Deviation: the paper's agent has three searches of its shop (knowledge, shop APIs,
general APIs); here one search covers the catalogue, whatever it holds. Outputs are in ReAct's form.
"""

from __future__ import annotations

from typing import Any

from verl_ext.mas import Task
from verl_ext.recipe.baselines import prompts
from verl_ext.recipe.smurfs.baselines import Baseline, Work
from verl_ext.recipe.smurfs.reach import SEARCHING


class SingleAgent(Baseline):
    """`agent`, whose tools are those that it has found. A search counts against the budget, but is no tool call."""

    modules = {"faithful": prompts}
    prompt = "single"

    def __init__(self, tools: str = "search", **others: Any):
        super().__init__(**others, tools="search")

    async def play(self, task: Task, ctx: Any) -> Work:
        """Search, act, answer."""
        work = Work(task)
        turn = await self.sequence(ctx, work, [SEARCHING], question=task.question)
        return self.end(work, turn, finished=work.spent < self.budget)
