"""A single agent that is given no tools, but searches for them: the single agents of JoyAgents-R1's Table 1.

"JoyAgents-R1", Appendix, Template 6. Deviation: the paper's agent has three searches of its shop (knowledge, shop APIs,
general APIs); here one search covers the catalogue, whatever it holds. Outputs are in ReAct's form.
"""

from __future__ import annotations

from typing import Any

from verl_ext.mas import Task, ToolFailed
from verl_ext.recipe.baselines import prompts
from verl_ext.recipe.smurfs.baselines import Baseline, Work
from verl_ext.recipe.smurfs.turns import Turn


class SingleAgent(Baseline):
    """`agent`, whose tools are those that it has found. A search counts against the budget, but is no tool call.

    `tools` and `catalogue` have no effect: it always searches.
    """

    modules = {"faithful": prompts}
    prompt = "single"

    async def run(self, task: Task, ctx: Any) -> Work:
        """Search, act, answer."""
        work = Work(task)
        turn = await self.sequence(ctx, work, [], question=task.question)
        return self.end(work, turn, finished=work.spent < self.budget)

    async def act(self, ctx: Any, work: Work, tools: list[dict[str, Any]], turn: Turn) -> str:
        """A search adds what it finds to the tools of this question; any other call as in `Baseline`."""
        if turn.name != prompts.SEARCH or turn.arguments is None:
            return await super().act(ctx, work, tools, turn)
        work.searches += 1
        try:
            found = await ctx.tool("tool_search", query=str(turn.arguments.get("intention") or ""))
        except (ToolFailed, ValueError) as error:
            work.tool_failures += 1
            return self.prompts.documents({"ok": False, "error": str(error)[:200]}, self.max_result_chars)
        known = {tool["name"] for tool in tools}
        tools += [tool for tool in found if tool["name"] not in known]
        return self.prompts.documents({"ok": True, "result": found}, self.max_result_chars)
