"""The three-agent search system of MHGPO: Rewriter -> (search) -> Reranker -> Answerer."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from verl_ext.mas import Agent, Task, Workflow
from verl_ext.mas.options import one_of
from verl_ext.recipe.mhgpo import parsers, prompts, prompts_tiny
from verl_ext.recipe.mhgpo.penalties import Penalties
from verl_ext.rewards.qa import qa_scores

PROMPTS: dict[str, ModuleType] = {"full": prompts, "tiny": prompts_tiny}


def choose_prompts(name: str) -> ModuleType:
    """The prompts of that name.

    Raises:
        ValueError: there are none.
    """
    one_of("prompts", name, PROMPTS)
    return PROMPTS[name]


class SearchQA(Workflow):
    """One question: queries, retrieval, choice of documents, answer. Shared reward: F1 against the gold answers.

    Args:
        prompts: full | tiny (the compact form that the embedded tiny model was trained on).
        penalties: fields of `Penalties`.
    """

    headline = "f1"
    needs = ("search",)

    def __init__(self, prompts: str = "full", penalties: dict[str, Any] | None = None):
        ask, fine = choose_prompts(prompts), Penalties(**(penalties or {}))
        self.agents = {
            "rewriter": Agent(ask.rewriter, parsers.queries, fine.rewriter),
            "reranker": Agent(ask.reranker, parsers.chosen_documents, fine.reranker),
            "answerer": Agent(ask.answerer, parsers.answer, fine.answerer),
        }

    async def run(self, task: Task, ctx: Any) -> str:
        queries = await ctx.call("rewriter", question=task.question)
        docs = await ctx.tool("search", queries=queries)
        chosen = await ctx.call("reranker", question=task.question, docs=docs) if docs else []
        ctx.note("chosen", chosen)
        return await ctx.call("answerer", question=task.question, docs=chosen)

    def reward(self, task: Task, result: str) -> tuple[float, dict[str, float]]:
        scores = qa_scores(result, task.ground_truth["target"])
        return scores["f1"], scores
