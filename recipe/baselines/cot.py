"""Chain of thought: one output reasons and answers, without tools.

"Large Language Models are Zero-Shot Reasoners", Kojima et al. (2022), arXiv 2205.11916.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from verl_ext.mas import Agent, Task
from verl_ext.recipe.baselines import prompts
from verl_ext.recipe.smurfs.baselines import Baseline, Work
from verl_ext.recipe.smurfs.scoring import read_final


class CoT(Baseline):
    """One call of `agent`. Its arguments about tools have no effect."""

    modules = {"faithful": prompts}
    prompt = "cot"
    needs = ()

    def others(self) -> dict[str, Agent]:
        """In place of the acting agent, one that answers."""
        return {"agent": Agent(partial(self.prompts.cot, **self.form), partial(read_final, **self.form))}

    async def play(self, task: Task, ctx: Any) -> Work:
        """Think and answer."""
        work = Work(task, finished=True)
        work.answer = await self.heard(ctx, work, ctx.call("agent", question=task.question), "")
        return work
