"""Reading the files that tools come from. Every error names the file and the row."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from verl_ext.storage import jsonl
from verl_ext.tools.retrieval.corpus import Paths, as_paths

# Scalars of YAML 1.2 (section 10.3.2) that PyYAML, which implements version 1.1, reads differently.
SCALARS = {
    "bool": "true|True|TRUE|false|False|FALSE",
    "int": "[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}

# Values that a YAML document may hold, those behind an alias counted wherever it is used. A few hundred bytes of
# nested aliases stand for millions.
MAX_VALUES = 1_000_000
TOO_MANY = f"its aliases stand for more than {MAX_VALUES:,} values"


def read_rows(paths: Paths, expected: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """("FILE:ROW", row) of jsonl files; blank lines are skipped.

    Args:
        expected: what a row must be, for error messages.

    Raises:
        ValueError: a file is missing or has no rows, or a row is no JSON object.
    """
    for path in as_paths(paths):
        rows = 0
        for row in jsonl.read_rows(path, expected):
            rows += 1
            yield row
        if not rows:
            raise ValueError(f"{path} has no rows; expected one JSON object per line: {expected}")


def read_document(path: Path) -> dict[str, Any]:
    """A JSON (.json) or YAML (.yaml, .yml) document whose top is an object; keys are texts.

    YAML is read as version 1.2: `on`, `2020-01-01` and `12:30` are texts, 010 is ten. (ruamel.yaml reads a date there,
    and 1_000 as a number.)

    Raises:
        ValueError: it is missing, has another suffix, is malformed, or its aliases stand for more than MAX_VALUES.
    """
    suffixes = (".json", ".yaml", ".yml")
    if path.suffix.lower() not in suffixes:
        raise ValueError(f"{path}: given suffix {path.suffix!r}, allowed {list(suffixes)}")
    if not path.is_file():
        raise ValueError(f"{path} does not exist, or is no file; correct the path")
    content = path.read_bytes()
    try:
        document = json.loads(content) if path.suffix.lower() == ".json" else _yaml(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is malformed: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{path}: given {type(document).__name__} at the top, expected an object")
    return document


def field(row: Mapping[str, Any], name: str, kind: type, where: str) -> Any:
    """`row[name]`, which must be a `kind`.

    Raises:
        ValueError: it is missing or something else.
    """
    if not isinstance(row.get(name), kind):
        given = "nothing" if name not in row else f"{type(row[name]).__name__} {row[name]!r:.80}"
        raise ValueError(f"{where}: field {name!r} must be of type {kind.__name__}, given {given}")
    return row[name]


def _yaml(content: bytes) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML with the scalars of its version 1.2 (core schema), and with bounded merges (`<<: [*a, *a]`)."""

        merged = 0

        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            super().flatten_mapping(node)
            self.merged += len(node.value)
            if self.merged > MAX_VALUES:
                raise yaml.YAMLError(TOO_MANY)

    own = {f"tag:yaml.org,2002:{kind}": pattern for kind, pattern in SCALARS.items()}
    dropped = {*own, "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value"}
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in dropped]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for tag, pattern in own.items():
        Loader.add_implicit_resolver(tag, re.compile(f"^(?:{pattern})$"), None)
    Loader.add_constructor("tag:yaml.org,2002:int", _integer)
    try:
        document = yaml.load(content, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    if _values(document, {}) > MAX_VALUES:
        raise ValueError(TOO_MANY)
    return _text_keys(document)


def _values(value: Any, counted: dict[int, int]) -> int:
    """How many values there are in `value`. counted: those of the lists and objects counted so far, by id."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in counted:
        items = value.values() if isinstance(value, dict) else value
        counted[id(value)] = 1 + sum(_values(item, counted) for item in items)
    return counted[id(value)]


def _integer(loader: Any, node: Any) -> int:
    return int(node.value, 0 if node.value[:2] in ("0o", "0x") else 10)


def _text_keys(value: Any) -> Any:
    """Turn keys into texts, as in JSON: YAML reads response codes as integers."""
    if isinstance(value, dict):
        return {str(key): _text_keys(item) for key, item in value.items()}
    return [_text_keys(item) for item in value] if isinstance(value, list) else value
