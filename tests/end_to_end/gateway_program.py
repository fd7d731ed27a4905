"""The search system of MHGPO as a program that knows nothing of verl_ext but its endpoint."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import Request, urlopen

from verl_ext.gateway import BlockingEndpoint, GatewayWorkflow
from verl_ext.mas import Agent, Task, Unparsable
from verl_ext.recipe.mhgpo import parsers
from verl_ext.recipe.mhgpo.workflow import SearchQA


class SearchProgram(GatewayWorkflow):
    """Rewriter, search, reranker, answerer, by HTTP. Arguments and reward as `SearchQA`."""

    headline = "f1"
    needs = ("search",)

    def __init__(self, prompts: str = "tiny", penalties: dict[str, Any] | None = None):
        self.system = SearchQA(prompts, penalties)
        self.agents = {name: Agent() for name in self.system.agents}

    def program(self, task: Task, endpoint: BlockingEndpoint) -> str:
        ask, question = self.system.prompts, task.question
        text = _complete(endpoint, "rewriter", ask.rewriter(question=question))
        queries = _read(parsers.queries, text, question=question)
        docs = endpoint.tool("search", queries=list(dict.fromkeys(queries)))
        text = _complete(endpoint, "reranker", ask.reranker(question=question, docs=docs)) if docs else ""
        chosen = _read(parsers.chosen_documents, text, question=question, docs=docs) or []
        return parsers.answer(_complete(endpoint, "answerer", ask.answerer(question=question, docs=chosen)))

    def reward(self, task: Task, result: str) -> tuple[float, dict[str, float]]:
        return self.system.reward(task, result)


def _read(parser: Any, text: str, **inputs: Any) -> Any:
    try:
        return parser(text, **inputs)
    except Unparsable as error:
        return error.fallback


def _complete(endpoint: BlockingEndpoint, agent: str, messages: list[dict[str, str]]) -> str:
    data = json.dumps({"model": agent, "messages": messages}).encode()
    headers = {"Authorization": f"Bearer {endpoint.api_key}", "Content-Type": "application/json"}
    with urlopen(Request(f"{endpoint.base_url}/chat/completions", data, headers), timeout=600) as answer:
        return json.loads(answer.read())["choices"][0]["message"]["content"]
