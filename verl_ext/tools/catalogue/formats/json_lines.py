"""Tools in the form of OpenAI's functions, one JSON object per line.

    {"name": "get_weather", "description": "...", "parameters": {"type": "object", "properties": {…}}, "returns": …}
    {"type": "function", "function": {"name": "get_weather", …}}                                   OpenAI's wrapping

`parameters` is kept as it is; a tool without it takes no arguments. Other fields go to `extra`.
"""

from __future__ import annotations

from typing import Any

from verl_ext.tools.catalogue.formats.files import Paths, field, read_rows
from verl_ext.tools.catalogue.types import ToolSpec

EXPECTED = '{"name", "description", "parameters"}, alone or under "function"'
KNOWN = ("name", "description", "parameters", "returns")


def load(path: Paths) -> list[ToolSpec]:
    """The tools of jsonl files, in order.

    Raises:
        ValueError: a file is missing, or a row is malformed.
    """
    return [_tool(row, where) for where, row in read_rows(path, EXPECTED)]


def _tool(row: dict[str, Any], where: str) -> ToolSpec:
    said = field(row, "function", dict, where) if row.get("type") == "function" else row
    parameters = (
        field(said, "parameters", dict, where) if "parameters" in said else {"type": "object", "properties": {}}
    )
    description = field(said, "description", str, where) if "description" in said else ""
    extra = {name: value for name, value in said.items() if name not in KNOWN}
    return ToolSpec(field(said, "name", str, where), description, parameters, said.get("returns"), "json", extra)
