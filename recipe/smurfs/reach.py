"""Where a baseline's tools are: in a catalogue, in an environment, or a few of `mas.tools` themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from verl_ext.mas import Task, ToolFailed
from verl_ext.mas.options import one_of
from verl_ext.mas.workflow import Score
from verl_ext.recipe.deepagent.environments.alfworld import path_share
from verl_ext.recipe.deepagent.environments.base import name_of
from verl_ext.recipe.deepagent.general import DOCUMENTED
from verl_ext.recipe.smurfs import base

SEARCH = "tool_search"
# How an agent that searches by itself sees the search.
SEARCHING = {
    "name": SEARCH,
    "description": "Finds tools for an intention: their names, descriptions and parameters. They can then be called.",
    "parameters": {"type": "object", "properties": {"intention": {"type": "string"}}, "required": ["intention"]},
}


class Reach(base.ToolSystem):
    """A system of one agent that calls tools; `play` is its run, whatever the tools are.

    Args:
        tools: given: the task's own, or all of `catalogue`; retrieved: those that one search for the question finds;
            search: the agent begins with `tool_search` alone, and calls what it finds.
        environment: name of an `EnvironmentTool` of `mas.tools`, whose actions are the tools (tools=given) and whose
            score is the reward.
        use: in place of all that, tools of `mas.tools` that the agent calls directly, as those of `GeneralAgent`.
        options: see `ToolSystem`.

    Raises:
        ValueError: an argument out of range.
    """

    sources = ("given", "retrieved", "search")
    needs: tuple[str, ...]
    details: tuple[str, ...]

    def __init__(self, *options: Any, environment: str = "", use: Sequence[str] = ()):
        super().__init__(*options)
        for name in use:
            one_of("use", name, list(DOCUMENTED))
        if use and environment:
            raise ValueError(f"environment and use exclude each other, given {environment!r} and {list(use)}")
        self.environment, self.use = environment, tuple(use)
        if environment or use:
            own = ("run_python",) if "run_python" in self.needs else ()
            self.needs = tuple(dict.fromkeys((*own, *(use or (environment, SEARCH)))))
            self.details = tuple(name for name in self.details if name not in ("correct_calls", "unneeded_calls"))

    async def run(self, task: Task, ctx: Any) -> Any:
        """Play the task; in an environment with its first observation."""
        if self.environment:
            begun = await ctx.tool(self.environment, task=name_of(task), past=[])
            task = replace(task, question=f"{task.question}\n\n{begun['result']}")
        return await self.play(task, ctx)

    async def play(self, task: Task, ctx: Any) -> Any:
        """The system itself."""
        raise NotImplementedError

    async def documents(self, ctx: Any, task: Task, query: str) -> list[dict[str, Any]]:
        """The tools with which the agent begins. Raises ValueError, see `ToolSystem`."""
        if self.use:
            return [DOCUMENTED[name].shown() for name in self.use]
        if self.tools == "search":
            return [SEARCHING]
        if self.tools == "retrieved":
            found: list[dict[str, Any]] = await ctx.tool(SEARCH, query=query)
            return found
        return await super().documents(ctx, task, query)

    async def ask(self, ctx: Any, work: Any, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The answer of a tool, wherever it is."""
        if self.environment:
            return await self._step(ctx, work, name, arguments)
        if not self.use:
            return await super().ask(ctx, work, name, arguments)
        if problems := DOCUMENTED.problems(name, arguments):
            return {"ok": False, "error": "; ".join(problems)}
        try:
            return {"ok": True, "result": await ctx.tool(name, **arguments)}
        except ToolFailed as failure:
            work.tool_failures += 1
            return {"ok": False, "error": str(failure)[:200]}

    async def _step(self, ctx: Any, work: Any, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        past = [{"name": call.name, "arguments": call.arguments} for call in work.calls[work.begun :] if call.ok]
        task = name_of(work.task)
        answer: dict[str, Any] = await ctx.tool(self.environment, task=task, past=past, name=name, arguments=arguments)
        if answer["ok"]:
            work.score = answer["score"]
            over = "\nThe task is over: answer now." if answer["done"] else ""
            answer = answer | {"result": f"{answer['result']}{over}"}
        return answer

    async def search(self, ctx: Any, work: Any, tools: list[dict[str, Any]], intention: str) -> dict[str, Any]:
        """What a search of the agent's own finds, which is added to `tools`; counted against the budget."""
        work.searches += 1
        try:
            found = await ctx.tool(SEARCH, query=intention)
        except (ToolFailed, ValueError) as error:
            work.tool_failures += 1
            return {"ok": False, "error": str(error)[:200]}
        known = {tool["name"] for tool in tools}
        tools += [tool for tool in found if tool["name"] not in known]
        return {"ok": True, "result": found}

    def reward(self, task: Task, result: Any) -> Any:
        """As `ToolSystem`; in an environment its score of the last turn, and ALFWorld's `path`."""
        if not self.environment:
            return super().reward(task, result)
        scores = {"score": result.score}
        share = path_share(result.task.question, (str(call.get("result", "")) for call in result.shown))
        scores |= {} if share is None else {"path": share}
        score: Score = (result.score, self.measured(result, float(result.score >= 1.0), scores))
        return score
