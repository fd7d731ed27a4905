"""The four agents that the master calls (JoyAgents-R1, Section 3.1 and templates 2 to 5)."""

from __future__ import annotations

from typing import Any

from verl_ext.mas import Agent, ToolFailed
from verl_ext.mas.options import one_of
from verl_ext.recipe.joyagents.react import OUTPUT, RESULT_CHARS, ReActAgent, Work, intention_of, safe

APIS = SEARCHED, LISTED = ("searched", "listed")
RETRIEVALS, SUMMARY, INTENTION = "tool_retrievals", "tool_summary", "tool_intention"


async def understood(ctx: Any, work: Work) -> str:
    """`tool_intention`: what the user wants, as the agent `intention` says it. It does not train."""
    said: str = await ctx.call("intention", query=work.query, turns=list(work.turns))
    return said.rpartition("</think>")[2].strip()


class FunctionAgent(ReActAgent):
    """Calls functions: finds them by `tool_retrievals`, calls them, passes on their results (Templates #2 and #3).

    Args:
        search, call: names of its tools under `mas.tools` (verl_ext.tools.catalogue).
        apis: searched: it has to look for its functions (Figures 6 and 7); listed: those that a search for its query
            finds are among its tools from the start (Table 9).
        options: of ReActAgent.
    """

    def __init__(self, name: str, *options: Any, search: str, call: str, apis: str):
        super().__init__(name, *options)
        one_of("apis", apis, APIS)
        self.search, self.execute, self.apis = search, call, apis
        self.needs = (search, call)
        self.agents["intention"] = Agent(self.prompts.intention, trained=False)

    async def begin(self, ctx: Any, work: Work) -> None:
        if self.apis == LISTED:
            try:
                work.tools = await ctx.tool(self.search, query=work.query)
            except ToolFailed:  # it can still search
                work.tool_failures += 1

    def shown(self, work: Work) -> dict[str, Any]:
        return {"tools": work.tools} if self.apis == LISTED else {}

    async def act(self, ctx: Any, work: Work, name: str, arguments: dict[str, Any]) -> str:
        if name == RETRIEVALS:
            found = await ctx.tool(self.search, query=intention_of(arguments) or work.query)
            return self.prompts.documents(found)
        if name == INTENTION:
            return await understood(ctx, work)
        answer = await ctx.tool(self.execute, name=name, arguments=arguments)
        if answer["ok"]:
            work.done.add(name)
        return self.prompts.called(name, arguments, answer, RESULT_CHARS)


def shown(passages: list[dict[str, str]]) -> list[dict[str, str]]:
    """Passages as agents may read them."""
    return [{field: safe(text, RESULT_CHARS) for field, text in passage.items()} for passage in passages]


class QuestionAgent(ReActAgent):
    """Answers questions: looks them up in the knowledge base, and lets `tool_summary` write the answer.

    `tool_summary` is a role of its own that is not trained, of the same checkpoint by default. It sees what
    `tool_retrievals` has found if that was called just before.
    """

    def __init__(self, name: str, *options: Any, search: str = "knowledge"):
        super().__init__(name, *options)
        self.search, self.needs = search, (search,)
        self.agents["summary"] = Agent(self.prompts.summary, trained=False)

    async def act(self, ctx: Any, work: Work, name: str, arguments: dict[str, Any]) -> str:
        if name == RETRIEVALS:
            found = await ctx.tool(self.search, queries=[work.query])
            work.found = shown(found)
            return self.prompts.passages(work.found)
        if name == SUMMARY:
            found, work.found = work.found, None
            said = await ctx.call("summary", query=work.query, passages=found)
            return said.rpartition("</think>")[2].strip()[:RESULT_CHARS]
        return self.unknown(name)


class MathAgent(ReActAgent):
    """Solves a problem by thinking; it has no tools."""

    def handed_over(self, work: Work) -> str:
        """Its steps and the number, as in Table 8; the number alone if that is all that is remembered."""
        return f"{work.thought}\n{work.answer}" if self.remember == OUTPUT and work.answer else work.answer

    async def act(self, ctx: Any, work: Work, name: str, arguments: dict[str, Any]) -> str:
        return self.unknown(name)
