"""The single-agent baseline: one call answers from the passages that the question itself retrieves, or from none."""

from __future__ import annotations

from typing import Any

from verl_ext.mas import Agent, Task
from verl_ext.recipe.mhgpo import parsers
from verl_ext.recipe.mhgpo.penalties import Penalties
from verl_ext.recipe.mhgpo.workflow import SearchQA, choose_prompts


class SingleQA(SearchQA):
    """One question, one call. Reward: F1 against the gold answers.

    Args:
        prompts: full | tiny, as in `SearchQA`.
        penalties: fields of `Penalties`; those of the answerer apply.
        retrieve: False asks the model without any passage (closed book).
    """

    def __init__(self, prompts: str = "full", penalties: dict[str, Any] | None = None, retrieve: bool = True):
        ask, fine = choose_prompts(prompts), Penalties(**(penalties or {}))
        self.retrieve, self.needs = retrieve, ("search",) if retrieve else ()
        self.agents = {"single": Agent(ask.single, parsers.answer, fine.answerer)}

    async def run(self, task: Task, ctx: Any) -> str:
        docs = await ctx.tool("search", queries=[task.question]) if self.retrieve else []
        return await ctx.call("single", question=task.question, docs=docs)
