"""A LangGraph program: rewrite a question, search, choose passages, answer; again if the answer is in none of them.

It knows a server, a key and a search tool, and nothing of verl_ext.

    START ─▶ rewrite ─▶ search ─▶ choose ─▶ answer ─▶ END
                ▲                              │
                └───── not in the passages ────┘
"""

from __future__ import annotations

import re
from typing import Any, TypedDict

from langchain_core.tools import BaseTool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph


class State(TypedDict, total=False):
    question: str
    queries: list[str]
    docs: list[dict[str, Any]]
    answer: str
    rounds: int


async def answer(question: str, search: BaseTool, base_url: str, api_key: str) -> str:
    """Answer a question with the passages that `search` finds."""

    async def ask(model: str, prompt: str) -> str:
        llm = ChatOpenAI(model=model, base_url=base_url, api_key=api_key, max_retries=0)
        return str((await llm.ainvoke([("user", prompt)])).content).strip()

    def shown(docs: list[dict[str, Any]]) -> str:
        return "".join(f"{number} {doc['title']}: {doc['text']} " for number, doc in enumerate(docs))

    async def rewrite(state: State) -> State:
        written = (await ask("rewriter", f"rewrite: {question}")).strip("# ").split(";")
        queries = list(dict.fromkeys(query.strip() for query in written if query.strip()))
        return {"queries": queries or [question], "rounds": state.get("rounds", 0) + 1}

    async def find(state: State) -> State:
        return {"docs": await search.ainvoke({"queries": state["queries"]})}

    async def choose(state: State) -> State:
        docs = state["docs"]
        ids = map(int, re.findall(r"\d{1,3}", await ask("reranker", f"{shown(docs)}rank: {question}")))
        return {"docs": [docs[i] for i in dict.fromkeys(ids) if i < len(docs)] or docs[:1]}

    async def conclude(state: State) -> State:
        return {"answer": await ask("answerer", f"{shown(state['docs'])}answer: {question}")}

    def enough(state: State) -> str:
        return END if state["answer"] in shown(state["docs"]) or state["rounds"] == 2 else "rewrite"

    graph = StateGraph(State)
    for name, node in {"rewrite": rewrite, "search": find, "choose": choose, "conclude": conclude}.items():
        graph.add_node(name, node)
    for edge in ((START, "rewrite"), ("rewrite", "search"), ("search", "choose"), ("choose", "conclude")):
        graph.add_edge(*edge)
    graph.add_conditional_edges("conclude", enough)
    return (await graph.compile().ainvoke({"question": question}))["answer"]
