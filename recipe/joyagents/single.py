"""One agent with all tools: the baseline of Table 1 (JoyAgents-R1, Section 4.4 and Template #6)."""

from __future__ import annotations

from typing import Any

from verl_ext.mas import Task
from verl_ext.mas.prompts import prompts_of
from verl_ext.recipe.joyagents import prompts as faithful
from verl_ext.recipe.joyagents.react import ANSWER, RESULT_CHARS, ReActAgent, Work, intention_of
from verl_ext.recipe.joyagents.scoring import DETAILS, Scorer, similarity_of
from verl_ext.recipe.joyagents.specialists import shown
from verl_ext.tools.catalogue.types import UNKNOWN_TOOL

NAME = "single_agent"
KNOWLEDGE, SHOP, GENERAL = (f"tool_retrievals_{where}" for where in ("knowledge", "API_shop", "API_general"))


class SingleAgent(ReActAgent):
    """One agent that calls everything itself: it looks up knowledge, finds APIs in two catalogues, and calls them.

    Args:
        prompts: faithful (Template #6), or a YAML file (`mas/prompts.py`).
        max_rounds: outputs for a question.
        encoder, exact_numbers, check_calls: as in JoyAgents.

    Raises:
        ValueError: an argument out of range.
    """

    headline, details, needs_truth = "accuracy", DETAILS, True
    needs = ("knowledge", "shop_search", "shop_call", "function_search", "function_call")

    def __init__(
        self,
        prompts: str = "faithful",
        max_rounds: int = 16,
        encoder: str = "hashing",
        exact_numbers: bool = True,
        check_calls: bool = True,
    ):
        super().__init__(NAME, prompts_of(prompts, {"faithful": faithful}), max_rounds, ANSWER)
        self.scorer = Scorer(similarity_of(encoder), exact_numbers, check_calls)

    def _prompt(self, query: str, turns: list[tuple[str, str]], **_: Any) -> list[dict[str, str]]:
        return super()._prompt(query, turns)  # Template #6 has no memory

    async def act(self, ctx: Any, work: Work, name: str, arguments: dict[str, Any]) -> str:
        """Look something up, or call an API: the platform's if it has that name, else a general one."""
        query = intention_of(arguments) or work.query
        if name == KNOWLEDGE:
            found = await ctx.tool("knowledge", queries=[query])
            return self.prompts.passages(shown(found))
        if name in (SHOP, GENERAL):
            return self.prompts.documents(
                await ctx.tool("shop_search" if name == SHOP else "function_search", query=query)
            )
        answer = await ctx.tool("shop_call", name=name, arguments=arguments)
        if not answer["ok"] and answer["kind"] == UNKNOWN_TOOL:
            answer = await ctx.tool("function_call", name=name, arguments=arguments)
        if answer["ok"]:
            work.done.add(name)
        return self.prompts.called(name, arguments, answer, RESULT_CHARS)

    async def reward(self, task: Task, result: Work) -> tuple[float, dict[str, float]]:
        """R_A, as of the system."""
        return await self.scorer(task, result)
