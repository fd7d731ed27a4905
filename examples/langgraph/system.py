"""Trains program.py: its agents are the names by which the graph's nodes ask for models, its tool is the recipe's."""

from __future__ import annotations

from typing import Any

from langchain_core.tools import tool

from examples.langgraph.program import answer
from verl_ext.gateway import Endpoint, GatewayWorkflow
from verl_ext.mas import Agent, Task
from verl_ext.rewards.qa import qa_scores


class GraphQA(GatewayWorkflow):
    """Shared reward: F1 of the answer."""

    agents = {"rewriter": Agent(), "reranker": Agent(), "answerer": Agent()}
    headline = "f1"
    needs = ("search",)

    async def program(self, task: Task, endpoint: Endpoint) -> str:
        @tool
        async def search(queries: list[str]) -> list[dict[str, Any]]:
            """Passages that the queries find."""
            return await endpoint.tool("search", queries=queries)

        return await answer(task.question, search, endpoint.base_url, endpoint.api_key)

    def reward(self, task: Task, result: str) -> tuple[float, dict[str, float]]:
        scores = qa_scores(result, task.ground_truth["target"])
        return scores["f1"], scores
