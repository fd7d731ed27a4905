"""The schemas of an OpenAPI document as self-contained JSON Schema 2020-12.

OpenAPI 3.1 uses JSON Schema. OpenAPI 3.0 has a dialect: `nullable`, and `exclusiveMinimum: true` beside `minimum`.
References into the document become references into `$defs`, which hold the definitions that a schema needs, recursive
ones included. Some converted documents have numbers and booleans in quotes ("minimum": "0", "required": "true", as in
RestBench's Spotify document): the quotes are removed where the keyword or the schema's type is unambiguous. Keywords of
older drafts and of Swagger 2 are rewritten, see `_modern`.
"""

from __future__ import annotations

import itertools
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
MAX_LEVELS = 64  # of nested schemas; the count begins again at a reference
QUOTED = {"integer": int, "number": (int, float), "boolean": bool}  # JSON type -> Python types


class SchemaReader:
    """Reads schemas of `document`, an OpenAPI 3 document; `name` is for error messages."""

    def __init__(self, document: Mapping[str, Any], name: str):
        self._document, self.name = document, name
        self._names: dict[tuple[int | None, str], str] = {}  # (id of the base, JSON pointer) -> name among $defs
        self._wanted: list[tuple[str, Any, Any]] = []  # (name, schema, base) of definitions that are still to be read

    def resolve(self, node: Any) -> dict[str, Any]:
        """`node`, or the target of its "$ref"; for parameters, bodies and responses.

        Raises:
            ValueError: the reference leads nowhere, in a circle or to another file, or the node is no object.
        """
        seen: list[str] = []
        while isinstance(node, Mapping) and isinstance(node.get("$ref"), str):
            if node["$ref"] in seen:
                raise ValueError(f"{self.name}: the references {seen} form a circle")
            seen.append(node["$ref"])
            node = self._target(node["$ref"], self._document)
        if not isinstance(node, Mapping):
            raise ValueError(f"{self.name}: given {type(node).__name__} {node!r:.80}, expected an object")
        return dict(node)

    def schema(self, schema: Any) -> dict[str, Any]:
        """One schema, with the definitions that it needs under "$defs".

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
        part = self._part(schema, definitions, None, 0)
        while self._wanted:
            name, target, base = self._wanted.pop()
            definitions[name] = self._part(target, definitions, base, 0)
        return part

    def _part(self, schema: Any, definitions: dict[str, Any], base: Any, level: int) -> Any:
        """One schema; its references are added to `_wanted`. base: the enclosing schema that has an "$id"."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise ValueError(f"{self.name}: given {type(schema).__name__} {schema!r:.80}, expected a schema")
        if level > MAX_LEVELS:
            raise ValueError(f"{self.name}: a schema is nested deeper than {MAX_LEVELS} levels")
        base = schema if "$id" in schema else base
        out: dict[str, Any] = {}
        for key, value in unquoted(_modern(schema)).items():
            if key == "$ref":
                out[key] = f"#/$defs/{self._define(value, definitions, base)}"
            elif key in ONE:
                out[key] = self._part(value, definitions, base, level + 1)
            elif key in LIST and isinstance(value, list):
                out[key] = [self._part(item, definitions, base, level + 1) for item in value]
            elif key in NAMED and isinstance(value, Mapping):
                out[key] = {name: self._part(item, definitions, base, level + 1) for name, item in value.items()}
            elif key != "$id":  # dropped, because all references of the result start at its top
                out[key] = value
        return nullable(_exclusive(out))

    def _define(self, pointer: Any, definitions: dict[str, Any], base: Any) -> str:
        """The name among `definitions` of the target of `pointer`; a new definition is read later."""
        inside = base is not None and self._leads(pointer, base)
        place = (id(base) if inside else None, pointer)
        if place not in self._names:
            whole, last = (re.sub(r"[^\w.-]", "_", text) for text in (str(pointer), str(pointer).rsplit("/", 1)[-1]))
            taken = self._names.values()
            free = (f"{whole}_{number}" for number in itertools.count(2))
            self._names[place] = next(name for name in itertools.chain((last, whole), free) if name not in taken)
        name = self._names[place]
        if name not in definitions:
            definitions[name] = {}
            target = self._target(pointer, base if inside else self._document)
            self._wanted.append((name, target, base if inside else None))
        return name

    def _leads(self, pointer: Any, root: Any) -> bool:
        try:
            self._target(pointer, root)
        except ValueError:
            return False
        return True

    def _target(self, pointer: Any, root: Any) -> Any:
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            raise ValueError(
                f"{self.name}: the reference {pointer!r} leads to another file. Remedy: bundle the document into one "
                "file first (`npx @redocly/cli bundle`)"
            )
        node: Any = root
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


def _modern(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`schema` with keywords of other dialects on its top level rewritten as 2020-12.

    `type: file` (Swagger 2); `required: true` within a property (draft 3); `items` as a list (until 2019-09);
    `examples` as an object, which OpenAPI allows only outside of schemas.
    """
    out = dict(schema)
    if out.get("type") == "file":
        out |= {"type": "string", "format": "binary"}
    if isinstance(out.get("items"), list):
        out["prefixItems"] = out.pop("items")
        if "additionalItems" in out:
            out["items"] = out.pop("additionalItems")
    if isinstance(out.get("examples"), Mapping):
        named = out["examples"].values()
        out["examples"] = [one["value"] if isinstance(one, Mapping) and "value" in one else one for one in named]
    named = out["properties"].items() if isinstance(out.get("properties"), Mapping) else ()
    needed = [name for name, one in named if isinstance(one, Mapping) and boolean(one.get("required"))]
    if not isinstance(out.get("required", []), list):
        del out["required"]
    if needed:
        out["required"] = list(dict.fromkeys([*out.get("required", []), *needed]))
    return out


def unquoted(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`schema` with numbers and booleans on its top level freed from quotes, see the module's docstring."""
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
    """A quoted `value` parsed if that gives the wanted type, else unchanged."""
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
