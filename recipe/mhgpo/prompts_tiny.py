"""The three agents' prompts in compact form, for the tiny model (recipe/cold_start/train.py) that was trained on them.

Same roles and same output contract as the natural-language prompts, so that the same parsers serve both:

    rewriter   question                      -> `### director Amber Harbor ; film Amber Harbor ###`
    reranker   candidates + question         -> ids, best first: `2 , 0`
    answerer   chosen documents + question   -> `Old Karsa`
    single     candidates + question         -> `Old Karsa` (the single-agent baseline)

Each function returns the chat messages of one call. Documents are mappings with "title" and "text", numbered from 0.
The question stands last, next to where the output begins: a model of four layers learns to read sooner that way.
Changing a character here changes what the tiny model was trained on: run its cold start again.
"""

from collections.abc import Mapping, Sequence

from verl_ext.mas.messages import Messages, user


def rewriter(question: str) -> Messages:
    """Ask for search queries for `question`."""
    return user(f"rewrite: {question}")


def reranker(question: str, docs: Sequence[Mapping[str, str]]) -> Messages:
    """Ask for the ids of the useful ones among `docs`."""
    return user(" ".join([*_numbered(docs), f"rank: {question}"]))


def answerer(question: str, docs: Sequence[Mapping[str, str]]) -> Messages:
    """Ask for the answer to `question`, read from `docs` (the chosen ones, best first)."""
    return user(" ".join([*_numbered(docs), f"answer: {question}"]))


def single(question: str, docs: Sequence[Mapping[str, str]]) -> Messages:
    """Ask one agent alone, with the passages that were found for `question`."""
    return user(" ".join([*_numbered(docs), f"single: {question}"]))


def numbered(number: int, doc: Mapping[str, str]) -> str:
    """One document as the prompts show it: the number stands beside the title."""
    return f"{number} {doc['title']}: {doc['text']}"


def _numbered(docs: Sequence[Mapping[str, str]]) -> list[str]:
    return [numbered(number, doc) for number, doc in enumerate(docs)]
