"""API-Bank's tools, in its two forms.

    {"name": "Calculator", "description": "...", "input_parameters": {"formula": {"type": "str", "description": "..."}},
     "output_parameters": {"result": {"type": "float", "description": "..."}}}                        tool catalogue

    {"类名": "GetToday", "api_info": "description = \"...\"\ninput_parameters = {\n    None\n}\n..."}   all_apis

`api_info` is Python source with assignments of literals, which is parsed and never run. Types have Python's names.
API-Bank does not mark optional parameters: a parameter is optional if its description says so ("[Optional]", "Only
needed for the first call"). Unknown arguments are refused, as by API-Bank's Python functions.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from typing import Any

from verl_ext.tools.catalogue.formats.files import Paths, field, read_rows
from verl_ext.tools.catalogue.schemas import object_of
from verl_ext.tools.catalogue.types import ToolSpec

EXPECTED = '{"name", "description", "input_parameters", "output_parameters"} or {"类名", "api_info"}'
TYPES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("str", "string", "datetime", "file"), {"type": "string"}),
    **dict.fromkeys(("int", "integer"), {"type": "integer"}),
    **dict.fromkeys(("float", "number", "float/int"), {"type": "number"}),
    **dict.fromkeys(("bool", "boolean"), {"type": "boolean"}),
    **dict.fromkeys(("list", "tuple"), {"type": "array"}),
    **dict.fromkeys(("dict", "object"), {"type": "object"}),
    "list of dictionaries": {"type": "array", "items": {"type": "object"}},
    "json": {},
}
OPTIONAL = re.compile(r"\boptional\b|\bonly needed\b", re.IGNORECASE)
# The api_info of a row of all_apis that describes no tool; it is left out.
NOTHING = "."


def load(path: Paths) -> list[ToolSpec]:
    """The tools of jsonl files in either form, in order; `returns` is a JSON Schema of the output.

    Raises:
        ValueError: a file is missing, or a row is malformed or of an unknown type.
    """
    return tools_of(read_rows(path, EXPECTED))


def tools_of(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> list[ToolSpec]:
    """The tools of ("where", row) pairs, see `load`. Raises ValueError, with where."""
    tools = []
    for where, row in rows:
        if "api_info" in row:
            info = field(row, "api_info", str, where)
            if info.strip() == NOTHING:
                continue
            row = {"name": field(row, "类名", str, where), **literals(info, where)}
        tools.append(_tool(row, where))
    return tools


def literals(text: str, where: str) -> dict[str, Any]:
    """The assignments `name = literal` of Python source, which is not run.

    Raises:
        ValueError: the source has anything else.
    """
    try:
        found = {}
        for line in ast.parse(text).body:
            if not isinstance(line, ast.Assign) or not isinstance(line.targets[0], ast.Name):
                raise ValueError(f"line {line.lineno} is no assignment")
            try:
                found[line.targets[0].id] = ast.literal_eval(line.value)
            except ValueError:  # its message has an address in memory
                raise ValueError(f"line {line.lineno}: {ast.unparse(line.value):.80} is no literal") from None
        return found
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"{where}: api_info must be assignments of Python literals ({error})") from error


def schema_of(kind: str) -> dict[str, Any]:
    """JSON Schema of a Python type's name: str, int, float, bool, list, list(str), List[str], dict, datetime, json, …

    Raises:
        ValueError: unknown type.
    """
    name = kind.strip().lower()
    items = re.fullmatch(r"list[\[(](.+)[\])]", name)
    if items:
        return {"type": "array", "items": schema_of(items[1])}
    if name not in TYPES:
        raise ValueError(f"type: given {kind!r}, allowed {sorted(TYPES)} and lists of them, list(str)")
    return dict(TYPES[name])


def _tool(row: Mapping[str, Any], where: str) -> ToolSpec:
    name, description = field(row, "name", str, where), field(row, "description", str, where)
    inputs, outputs = (_properties(row.get(key), where) for key in ("input_parameters", "output_parameters"))
    required = [key for key, schema in inputs.items() if not OPTIONAL.search(schema.get("description", ""))]
    returns = {"type": "object", "properties": outputs} if outputs else None
    return ToolSpec(name, description.strip(), object_of(inputs, required), returns, "api_bank")


def _properties(parameters: Any, where: str) -> dict[str, Any]:
    """Parameters by name as JSON Schemas. None and {None}, which some rows have, are no parameters."""
    if parameters is None or parameters == {None}:
        return {}
    if not isinstance(parameters, Mapping):
        raise ValueError(f"{where}: parameters must be an object, given {parameters!r:.120}")
    found = {}
    for name, said in parameters.items():
        try:
            schema = schema_of(field(said, "type", str, f"parameter {name!r}"))
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{where}: parameter {name!r}: {error}") from error
        description = str(said.get("description") or "").strip()
        found[str(name)] = {**schema, "description": description} if description else schema
    return found
