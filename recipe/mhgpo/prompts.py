"""The three agents' prompts, for instruction-tuned models: the rules of the paper's Appendix B, none added or left out.

The sentences are ours; docs/mhgpo.md sets them beside the paper's rules. The paper prints no prompt for a single model:
`single` is the answerer's. `prompts_tiny.py` holds the compact form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verl_ext.mas.messages import Messages, chat
from verl_ext.tools.catalogue.render import neutral

REWRITER = (
    "You are an expert in making complicated or unclear questions simple and easy to search. Rephrase the question "
    "that is given, or divide it into sub-questions, so that a search engine can find the answers. The sub-questions "
    "must follow from each other and depend on each other logically, and must not mean nearly the same. Use no vague "
    "pointing words or similar expressions, and write no sub-question twice. Write the sub-questions as a list "
    "of texts in this form: ### <query1>; <query2>; <query3>; ... ###"
)
RERANKER = (
    "You are an assistant who is helpful, respectful and honest. Your task: find out which of the candidate documents "
    "help to answer the question, and write their ids (0, 1, 2 and so on). Write nothing but the ids of the documents "
    "that can help with this question: {question}. Put the more relevant ones first."
)
ANSWERER = (
    "You are an assistant who is helpful, respectful and honest. Your task: predict the answer to the question on the "
    "basis of {basis}. If you do not know the answer, do not say anything false. Be as accurate as you can."
)


def rewriter(question: str) -> Messages:
    """Ask for search queries for `question`."""
    return chat(REWRITER, f"The original question: {question}")


def reranker(question: str, docs: Sequence[Mapping[str, str]]) -> Messages:
    """Ask for the ids of the useful ones among `docs`."""
    system = RERANKER.format(question=question)
    return chat(system, f"The question: {question}\n\n{_numbered(docs)}\n\nWrite only the ids.")


def answerer(question: str, docs: Sequence[Mapping[str, str]]) -> Messages:
    """Ask for the answer to `question`, read from `docs` (the chosen ones, best first)."""
    asked = f"Answer this question from the documents above: {question}"
    return chat(
        ANSWERER.format(basis="the given documents"), f"The question: {question}\n\n{_numbered(docs)}\n\n{asked}"
    )


def single(question: str, docs: Sequence[Mapping[str, str]]) -> Messages:
    """Ask one agent alone, with the passages that were found for `question`, or with none (closed book)."""
    if not docs:
        return chat(ANSWERER.format(basis="what you know"), f"The question: {question}")
    return answerer(question, docs)


def _numbered(docs: Sequence[Mapping[str, str]]) -> str:
    written = "Document {}: {{title: {}, snippet: {}}}".format
    lines = [written(number, doc["title"], doc["text"]) for number, doc in enumerate(docs)]
    return "\n".join(lines) or "No document was found."


# How an argument is written in a text of `mas.workflow.prompts`.
TEXTS: dict[str, Callable[[Any], str]] = {"docs": lambda docs: neutral(_numbered(docs))}
