"""The schemas of an OpenAPI document as JSON Schema 2020-12 that stands alone.

OpenAPI 3.1 uses JSON Schema as it is. 3.0 has a dialect: `nullable`, and `exclusiveMinimum: true` beside `minimum`.
References into the document become references into `$defs`, which hold what is needed of it, recursive schemas too.
Documents that went through a careless YAML converter have numbers and booleans in quotes ("minimum": "0",
"required": "true"; RestBench's Spotify document): where the keyword or the schema's type leaves no doubt, they are
taken out of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from verl_ext.tools.catalogue.schemas import nullable

# Keywords whose value is a schema, a list of schemas, or schemas by name.
ONE = frozenset({"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"})
ONE |= {"unevaluatedItems", "unevaluatedProperties"}
LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
# Keywords whose value is a number, or a boolean.
NUMBERS = frozenset({"minimum", "maximum", "multipleOf", "minLength", "maxLength", "minItems", "maxItems"})
NUMBERS |= {"minProperties", "maxProperties", "exclusiveMinimum", "exclusiveMaximum"}
BOOLEANS = frozenset({"additionalProperties", "nullable", "uniqueItems", "exclusiveMinimum", "exclusiveMaximum"})
BOOLEANS |= {"deprecated", "readOnly", "writeOnly"}
QUOTED = {"integer": int, "number": (int, float), "boolean": bool}  # type -> what Python reads it as


class SchemaReader:
    """Reads schemas of `document`, an OpenAPI 3 document; `name` is for messages."""

    def __init__(self, document: Mapping[str, Any], name: str):
        self._document, self.name = document, name
        self._names: dict[str, str] = {}  # JSON pointer -> name among $defs

    def resolve(self, node: Any) -> dict[str, Any]:
        """`node`, or what its "$ref" leads to; for parameters, bodies and responses.

        Raises:
            ValueError: the reference leads nowhere, in a circle or to another file, or the node is no object.
        """
        seen = []
        while isinstance(node, Mapping) and isinstance(node.get("$ref"), str):
            if node["$ref"] in seen:
                raise ValueError(f"{self.name}: the references {seen} form a circle")
            seen.append(node["$ref"])
            node = self._target(node["$ref"])
        if not isinstance(node, Mapping):
            raise ValueError(f"{self.name}: given {type(node).__name__} {node!r:.80}, expected an object")
        return dict(node)

    def schema(self, schema: Any) -> dict[str, Any]:
        """One schema with the definitions that it needs under "$defs".

        Raises:
            ValueError: see `part`.
        """
        definitions: dict[str, Any] = {}
        part = self.part(schema, definitions)
        part = part if isinstance(part, dict) else ({} if part else {"not": {}})
        return {**part, "$defs": {**definitions, **part.get("$defs", {})}} if definitions else part

    def part(self, schema: Any, definitions: dict[str, Any]) -> Any:
        """One schema; the definitions that it needs are added to `definitions`.

        Raises:
            ValueError: it is no schema, or a reference in it leads nowhere or to another file.
        """
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise ValueError(f"{self.name}: given {type(schema).__name__} {schema!r:.80}, expected a schema")
        out: dict[str, Any] = {}
        for key, value in unquoted(schema).items():
            if key == "$ref":
                out[key] = f"#/$defs/{self._define(value, definitions)}"
            elif key in ONE:
                out[key] = self.part(value, definitions)
            elif key in LIST and isinstance(value, list):
                out[key] = [self.part(item, definitions) for item in value]
            elif key in NAMED and isinstance(value, Mapping):
                out[key] = {name: self.part(item, definitions) for name, item in value.items()}
            else:
                out[key] = value
        return nullable(_exclusive(out))

    def _define(self, pointer: Any, definitions: dict[str, Any]) -> str:
        """The name among `definitions` of what `pointer` leads to, put there if it is not yet."""
        if pointer not in self._names:
            whole, last = (re.sub(r"[^\w.-]", "_", text) for text in (str(pointer), str(pointer).rsplit("/", 1)[-1]))
            self._names[pointer] = whole if last in self._names.values() else last
        name = self._names[pointer]
        if name not in definitions:
            definitions[name] = {}  # a schema that refers to itself finds this, which is filled below
            definitions[name] = self.part(self._target(pointer), definitions)
        return name

    def _target(self, pointer: Any) -> Any:
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            raise ValueError(
                f"{self.name}: the reference {pointer!r} leads to another file. Remedy: bundle the document into one "
                "file first (`npx @redocly/cli bundle`)"
            )
        node: Any = self._document
        for step in filter(None, pointer[1:].split("/")):
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            try:
                node = node[int(step)] if isinstance(node, list) else node[step]
            except (KeyError, IndexError, TypeError, ValueError):
                raise ValueError(f"{self.name}: the reference {pointer!r} leads nowhere (no {step!r})") from None
        return node


def boolean(value: Any) -> bool:
    """A flag of a document; "true" in quotes is true."""
    return value is True or (isinstance(value, str) and value.lower() == "true")


def unquoted(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`schema` (one level of it) with numbers and booleans out of their quotes, see the module's docstring."""
    out = dict(schema)
    for key, value in schema.items():
        if isinstance(value, str) and ((key in NUMBERS and _number(value)) or (key in BOOLEANS and _flag(value))):
            out[key] = json.loads(value)
    wanted = QUOTED.get(schema.get("type")) if isinstance(schema.get("type"), str) else None
    if wanted is not None:
        for key in ("default", "example"):
            if key in out:
                out[key] = _of_type(out[key], wanted)
        if isinstance(out.get("enum"), list):
            out["enum"] = [_of_type(value, wanted) for value in out["enum"]]
    return out


def _of_type(value: Any, wanted: Any) -> Any:
    """A quoted `value` as JSON reads it if that is of the wanted type, else as it is."""
    if not isinstance(value, str) or not (_number(value) or _flag(value)):
        return value
    read = json.loads(value)
    return read if isinstance(read, wanted) and (wanted is bool or not isinstance(read, bool)) else value


def _number(text: str) -> bool:
    return re.fullmatch(r"-?(0|[1-9]\d{0,30})(\.\d{1,30})?", text) is not None


def _flag(text: str) -> bool:
    return text in ("true", "false")


def _exclusive(schema: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI 3.0: `exclusiveMinimum: true` makes `minimum` exclusive."""
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(exclusive), bool):
            if schema.pop(exclusive) and bound in schema:
                schema[exclusive] = schema.pop(bound)
    return schema
