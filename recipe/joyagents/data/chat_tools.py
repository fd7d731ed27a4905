"""What the agents of the conversations see of their tools: searches, and calls whose arguments are clear."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from verl_ext.recipe.joyagents import prompts
from verl_ext.tools.catalogue.search.documents import passages
from verl_ext.tools.catalogue.types import Catalogue, ToolSpec
from verl_ext.tools.retrieval import build_retriever

FOUND = 5  # functions that a search shows


class Search:
    """A search over a catalogue, as `tool_retrievals` of an agent shows it."""

    def __init__(self, tools: Sequence[ToolSpec], found: int = FOUND):
        self.catalogue, self.found = Catalogue(tools), found
        self._retriever = build_retriever(passages(tools)) if tools else None  # a system may have no function agent

    def __call__(self, query: str, wanted: Sequence[str], **described: str) -> str:
        """The documents found, as text; described: other descriptions, by name."""
        found = self.documents(query, wanted)
        return prompts.documents(
            [one | {"description": described.get(one["name"], one["description"])} for one in found]
        )

    def documents(self, query: str, wanted: Sequence[str]) -> list[dict[str, Any]]:
        """The documents found; documents of `wanted` that the search missed replace the last ones."""
        hits = self._retriever.search([query], self.found)[0] if self._retriever else []
        names = [hit.passage.pid for hit in hits]
        missed = [name for name in wanted if name not in names]
        others = [name for name in names if name not in wanted]
        kept = set(others[: max(0, self.found - len(wanted))])
        names = [*(name for name in names if name in wanted or name in kept), *missed]
        return [self.catalogue[name].shown() for name in names]


def call_of(tool: ToolSpec, question: str) -> dict[str, Any] | None:
    """The arguments of a call if they are clear, else None.

    They are clear if the tool's documentation has an example of each required argument, and the question contains it
    word by word.
    """
    properties = tool.parameters.get("properties", {})
    arguments = {}
    for name in tool.parameters.get("required", ()):
        example = properties[name].get("default")
        if not isinstance(example, str | int) or isinstance(example, bool) or not str(example).strip():
            return None
        if not re.search(rf"(?<!\w){re.escape(str(example))}(?!\w)", question, re.I):
            return None
        arguments[name] = example
    return arguments
