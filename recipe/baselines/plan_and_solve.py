"""Plan-and-Solve: a planner writes the steps, and one ReAct sequence carries them out.

"Plan-and-Solve Prompting", Wang et al. (2023), arXiv 2305.04091. Deviation: the paper plans and solves in one output
and has no tools; here the plan is an output of its own, which can train by itself.
"""

from __future__ import annotations

from typing import Any

from verl_ext.mas import Agent, Task
from verl_ext.recipe.baselines import prompts
from verl_ext.recipe.smurfs.baselines import Baseline, Work


class PlanAndSolve(Baseline):
    """`planner`, then `agent`."""

    modules = {"faithful": prompts}
    prompt = "agent"

    def others(self) -> dict[str, Agent]:
        """The planner."""
        return {"planner": Agent(self.prompts.planner)}

    async def play(self, task: Task, ctx: Any) -> Work:
        """Plan, then act along the plan."""
        work = Work(task)
        tools = await self.documents(ctx, task, task.question)
        plan = await self.heard(ctx, work, ctx.call("planner", question=task.question, tools=tools), "")
        notes = f"Your plan, which you may change where a result demands it:\n{plan}" if plan else ""
        turn = await self.sequence(ctx, work, tools, question=task.question, notes=notes)
        return self.end(work, turn, finished=work.spent < self.budget)
