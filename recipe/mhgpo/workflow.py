"""The three-agent search system of MHGPO: Rewriter -> (search) -> Reranker -> Answerer; and its baseline, one agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

from verl_ext.mas import Agent, Task, Workflow
from verl_ext.mas.prompts import prompts_of
from verl_ext.recipe.mhgpo import parsers, prompts, prompts_tiny
from verl_ext.recipe.mhgpo.penalties import Penalties
from verl_ext.rewards.qa import qa_scores

PROMPTS: dict[str, ModuleType] = {"faithful": prompts, "tiny": prompts_tiny}


class SearchQA(Workflow):
    """One question: queries, retrieval, choice of documents, answer. Shared reward: F1 against the gold answers.

    Args:
        prompts: faithful (the rules of the paper's Appendix B), tiny (the compact form that the embedded tiny model was
            trained on), or a YAML file with texts of your own (`mas/prompts.py`).
        penalties: fields of `Penalties`.
    """

    headline = "f1"
    needs: Sequence[str] = ("search",)
    needs_truth = True

    def __init__(self, prompts: str = "faithful", penalties: dict[str, Any] | None = None):
        self.prompts = ask = prompts_of(prompts, PROMPTS)
        fine = Penalties.read(penalties or {}, "mas.workflow.penalties")
        self.agents = {
            "rewriter": Agent(ask.rewriter, parsers.queries, fine.rewriter, whole=True),
            "reranker": Agent(ask.reranker, parsers.chosen_documents, fine.reranker, whole=True),
            "answerer": Agent(ask.answerer, parsers.answer, fine.answerer),
        }

    async def run(self, task: Task, ctx: Any) -> str:
        queries = await ctx.call("rewriter", question=task.question)
        docs = await ctx.tool("search", queries=list(dict.fromkeys(queries)))  # a repetition would find the same
        chosen = await ctx.call("reranker", question=task.question, docs=docs) if docs else []
        ctx.note("chosen", chosen)
        return await ctx.call("answerer", question=task.question, docs=chosen)

    def reward(self, task: Task, result: str) -> tuple[float, dict[str, float]]:
        scores = qa_scores(result, task.ground_truth["target"])
        return scores["f1"], scores


class SingleQA(SearchQA):
    """The baseline: one call answers from the passages that the question itself retrieves, or from none. Reward: F1.

    Args:
        prompts: as in `SearchQA`.
        penalties: fields of `Penalties`; those of the answerer apply.
        retrieve: False asks the model without any passage (closed book).
    """

    def __init__(self, prompts: str = "faithful", penalties: dict[str, Any] | None = None, retrieve: bool = True):
        super().__init__(prompts, penalties)
        self.retrieve, self.needs = retrieve, ("search",) if retrieve else ()
        self.agents = {"single": replace(self.agents["answerer"], prompt=self.prompts.single)}

    async def run(self, task: Task, ctx: Any) -> str:
        docs = await ctx.tool("search", queries=[task.question]) if self.retrieve else []
        return await ctx.call("single", question=task.question, docs=docs)
