"""ToolBench's documents of RapidAPI's APIs: one jsonl row per API, or its retriever's corpus.tsv.

    {"category_name": "Data", "tool_name": "TheClique", "api_name": "Songkick concert",
     "api_description": "Concert info", "required_parameters": [{"name": "id_conc", "type": "string",
     "description": "", "default": "40698227-lumineers-at-aware-super-theatre"}], "optional_parameters": [],
     "method": "GET", "template_response": {"date": "str", ...}}

A tool is named "api for tool", as in ToolBench's prompts: songkick_concert_for_theclique. Letters and digits become
lower case, everything else one underscore. An API's name gets a prefix if it begins with a digit or is a Python word.
The last 64 characters of the whole are kept. RapidAPI lists some tools under several categories: a row that repeats
another one is left out; a different row with the same name gets its category as a suffix (…_in_finance), then a number.

Types were chosen by the API's author in a form and are unreliable: DATE, TIME, ENUM and BINARY are strings, and where
the default contradicts the type, both types are allowed ({"type": ["object", "string"], "default": "cities"}). An empty
default counts as none. Parameters keep RapidAPI's names; arguments that the document does not have are refused, as by
ToolBench's server.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from verl_ext.tools.catalogue.formats.files import Paths, as_paths, field, read_rows
from verl_ext.tools.catalogue.schemas import object_of
from verl_ext.tools.catalogue.types import ToolSpec, canonical

EXPECTED = '{"category_name", "tool_name", "api_name", "required_parameters": [...], "optional_parameters": [...], ...}'
# RapidAPI's type, up to a blank ("DATE (YYYY-MM-DD)"), in upper case -> JSON's.
TYPES = {"NUMBER": "number", "INTEGER": "integer", "BOOLEAN": "boolean", "ARRAY": "array", "LIST": "array"}
TYPES |= {"OBJECT": "object", "MAP": "object"}
PYTHON: dict[str, type | tuple[type, ...]] = {
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "array": list,
    "object": dict,
    "string": str,
}
NAMES = {bool: "boolean", int: "number", float: "number", list: "array", dict: "object", str: "string"}
MAX_NAME = 64
MAX_DOCUMENT = 10_000_000  # characters; csv's own limit is 131,072
# Names that ToolBench prefixes, because it writes Python functions.
PREFIXED = frozenset({"from", "class", "return", "false", "true", "id", "and"})


def load(path: Paths) -> list[ToolSpec]:
    """The APIs of files, in order; `returns` is the template response, `extra` has names, category and method.

    Raises:
        ValueError: a file is missing, or a row is malformed.
    """
    return tools_of(document for one in as_paths(path) for document in read_documents(one))


def read_documents(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """("where", document) of a file: jsonl, or .tsv with a column document_content that holds the document as JSON.

    The corpus has a row for every query that lists an API; a document is given once.

    Raises:
        ValueError: the file is missing, or a row is malformed.
    """
    if path.suffix != ".tsv":
        yield from read_rows(path, EXPECTED)
        return
    if not path.is_file():
        raise ValueError(f"{path} does not exist, or is no file; correct the path")
    csv.field_size_limit(MAX_DOCUMENT)
    seen: set[str] = set()
    for number, row in enumerate(_table(path), 1):
        where, text = f"{path} row {number}", row.get("document_content")
        if text in seen:
            continue
        try:
            document = json.loads(text or "")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: column document_content is no JSON ({error}): {text!r:.80}") from error
        if not isinstance(document, dict):
            raise ValueError(f"{where}: column document_content: given {text!r:.80}, expected {EXPECTED}")
        seen.add(str(text))
        yield where, document


def _table(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8", newline="") as file:
        try:
            yield from csv.DictReader(file, delimiter="\t")
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error


def tools_of(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> list[ToolSpec]:
    """The APIs of ("where", row) pairs, see `load`. Raises ValueError, with where."""
    seen: set[str] = set()
    names: set[str] = set()
    tools = []
    for where, row in rows:
        said = canonical({key: value for key, value in row.items() if key != "category_name"})
        if said in seen:
            continue
        seen.add(said)
        tools.append(_tool(row, where, names))
        names.add(tools[-1].name)
    return tools


def standard_name(api_name: str, tool_name: str) -> str:
    """The name of an API in ToolBench's prompts, at most 64 characters."""
    return f"{identifier(api_name)}_for_{_standard(tool_name)}"[-MAX_NAME:]


def identifier(text: str) -> str:
    """The name of an API or a parameter in ToolBench's Python functions."""
    name = _standard(text)
    return f"is_{name}" if name in PREFIXED else name


def address(category: str, tool_name: str, api_name: str) -> tuple[str, str, str]:
    """Identifies an API, for any spelling of its category, tool and API."""
    return _standard(category), _standard(tool_name), identifier(api_name)


def _tool(row: Mapping[str, Any], where: str, taken: set[str]) -> ToolSpec:
    category, tool_name, api_name = (field(row, key, str, where) for key in ("category_name", "tool_name", "api_name"))
    properties: dict[str, Any] = {}
    required: list[str] = []
    for key in ("required_parameters", "optional_parameters"):
        for parameter in field(row, key, list, where):
            name, schema = _parameter(parameter, where)
            if name not in properties:  # a few documents repeat one
                properties[name] = schema
                required += [name] if key == "required_parameters" else []
    extra = {"category_name": category, "tool_name": tool_name, "api_name": api_name, "method": row.get("method")}
    name = next(name for name in _candidates(api_name, tool_name, category) if name not in taken)
    description = str(row.get("api_description") or "").strip()
    parameters = object_of(properties, required)
    return ToolSpec(name, description, parameters, row.get("template_response"), "toolbench", extra)


def _candidates(api_name: str, tool_name: str, category: str) -> Iterator[str]:
    name = standard_name(api_name, tool_name)
    yield name
    name = f"{name}_in_{_standard(category)}"
    yield name
    yield from (f"{name}_{number}" for number in itertools.count(2))


def _parameter(parameter: Any, where: str) -> tuple[str, dict[str, Any]]:
    if not isinstance(parameter, Mapping) or not isinstance(parameter.get("name"), str):
        raise ValueError(f"{where}: a parameter must be an object with a name, given {parameter!r:.120}")
    kind = TYPES.get(str(parameter.get("type", "")).split(" ")[0].upper(), "string")
    schema: dict[str, Any] = {"type": kind}
    description = str(parameter.get("description") or "").strip()
    if description:
        schema["description"] = description
    default = parameter.get("default")
    if default not in (None, ""):
        schema["default"] = default = _read(default, kind)
        if not _fits(default, kind):
            schema["type"] = [kind, NAMES[type(default)]]
    return parameter["name"], schema


def _read(default: Any, kind: str) -> Any:
    """The default, parsed if it is the text of a value of this type ("6" for a number)."""
    if isinstance(default, str) and kind != "string":
        try:
            value = json.loads(default.lower() if kind == "boolean" else default)
        except (ValueError, RecursionError):
            return default
        return value if _fits(value, kind) else default
    return default


def _fits(value: Any, kind: str) -> bool:
    return isinstance(value, PYTHON[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _standard(text: str) -> str:
    """Keep letters (also Chinese), digits and ^, in lower case; anything between them becomes one underscore."""
    words = re.sub(r"[^\u4e00-\u9fa5a-zA-Z0-9^]+", "_", text).lower().strip("_")
    return f"get_{words}" if words[:1].isdigit() else words
