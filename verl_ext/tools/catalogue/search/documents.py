"""The searched text of a tool: its name, description, and the names and descriptions of its parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from verl_ext.tools.catalogue.schemas import DATA
from verl_ext.tools.catalogue.types import ToolSpec
from verl_ext.tools.retrieval.types import Passage

# The beginnings of words in camelCase and HTTPServer.
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def passages(tools: Iterable[ToolSpec]) -> list[Passage]:
    """One passage per tool (pid: the tool's name), sorted by name, so that the same catalogue gives the same index."""
    return [passage(tool) for tool in sorted(tools, key=lambda tool: tool.name)]


def passage(tool: ToolSpec) -> Passage:
    """Title: the name, and its words (GetUserToken Get User Token). Text: description and parameters, fields of BM25F.

    Encoders drop the form feed between them, but for which BERT's tokenizer would join the words beside it.
    """
    words = _WORD.sub(" ", tool.name)
    title = tool.name if words == tool.name else f"{tool.name} {words}"
    parameters = "\n".join(parameter_lines(tool.parameters))
    return Passage(tool.name, title, f"{tool.description}\n\f{parameters}".rstrip())


def parameter_lines(schema: Any) -> Iterator[str]:
    """`name: description` of every parameter, nested ones included."""
    if isinstance(schema, list):
        for item in schema:
            yield from parameter_lines(item)
    if not isinstance(schema, Mapping):
        return
    for key, value in schema.items():
        if key == "properties" and isinstance(value, Mapping):
            for name, said in value.items():
                description = said.get("description") if isinstance(said, Mapping) else None
                yield f"{name}: {description}" if isinstance(description, str) else str(name)
                yield from parameter_lines(said)
        elif key not in DATA:
            yield from parameter_lines(value)
