"""The three agents' prompts in natural language, for instruction-tuned models.

Same roles and output contract as Appendix B of the paper, in our own words. `prompts_tiny.py` holds the compact form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verl_ext.mas.messages import Messages, chat
from verl_ext.tools.catalogue.render import neutral

REWRITER = (
    "You turn a question into search queries. Split it into the simpler facts that must be looked up, in the order in "
    "which they depend on each other. Each query must make sense on its own: name things instead of saying 'he', 'it' "
    "or 'that film'. Do not repeat a query. Use as few as possible, at most four. Answer with nothing but the queries, "
    "in this form: ### query 1 ; query 2 ###"
)
RERANKER = (
    "You choose documents. Below are a question and numbered candidate documents. Name the ids of those that help to "
    "answer the question, the most useful first, separated by commas, for example: 2, 0. Leave out the others. Write "
    "each id once and nothing else."
)
ANSWERER = (
    "You answer a question from the documents given. Answer with the shortest phrase that is complete: a name, a date, "
    "a number, or yes or no. No sentence, no explanation. If the documents do not tell, answer: unknown"
)
CLOSED_BOOK = (
    "You answer a question from what you know. Answer with the shortest phrase that is complete: a name, a date, a "
    "number, or yes or no. No sentence, no explanation."
)


def rewriter(question: str) -> Messages:
    """Ask for search queries for `question`."""
    return chat(REWRITER, f"Question: {question}")


def reranker(question: str, docs: Sequence[Mapping[str, str]]) -> Messages:
    """Ask for the ids of the useful ones among `docs`."""
    return chat(RERANKER, f"Question: {question}\n\n{_numbered(docs)}\n\nIds of the useful documents:")


def answerer(question: str, docs: Sequence[Mapping[str, str]]) -> Messages:
    """Ask for the answer to `question`, read from `docs` (the chosen ones, best first)."""
    return chat(ANSWERER, f"{_numbered(docs)}\n\nQuestion: {question}\nAnswer:")


def single(question: str, docs: Sequence[Mapping[str, str]]) -> Messages:
    """Ask one agent alone, with the passages that were found for `question`, or with none (closed book)."""
    if not docs:
        return chat(CLOSED_BOOK, f"Question: {question}\nAnswer:")
    return answerer(question, docs)


def _numbered(docs: Sequence[Mapping[str, str]]) -> str:
    lines = [f"Document {number}: {doc['title']}\n{doc['text']}" for number, doc in enumerate(docs)]
    return "\n\n".join(lines) or "No document was found."


# How an argument is written in a text of `mas.workflow.prompts`.
TEXTS: dict[str, Callable[[Any], str]] = {"docs": lambda docs: neutral(_numbered(docs))}
