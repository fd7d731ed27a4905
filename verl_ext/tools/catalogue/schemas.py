"""JSON Schema: validators that neither use the network nor raise while they validate; OpenAPI's `nullable`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from jsonschema_specifications import REGISTRY
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from verl_ext.tools.catalogue.patterns import FORMATS, with_limit

# Keywords whose values are data: a "$ref" in them is no reference.
DATA = frozenset({"default", "const", "enum", "example", "examples"})


def validator(schema: Mapping[str, Any], what: str) -> Validator:
    """A validator of `schema`, for the draft that its "$schema" names (2020-12 by default).

    References may lead into the schema itself or to the drafts; nothing is fetched from the network. Validate with
    `patterns.errors_of`, which limits the time of the patterns.

    Raises:
        ValueError: it is no JSON Schema of an object, is nested too deeply, or a reference leads nowhere. The message
            begins with `what`.
    """
    try:
        return _validator(schema, what)
    except RecursionError:
        raise ValueError(f"{what} are nested too deeply") from None


def _validator(schema: Mapping[str, Any], what: str) -> Validator:
    if not isinstance(schema, Mapping):
        raise ValueError(f"{what} must be a JSON Schema (an object), given {type(schema).__name__}")
    schema = dict(schema)
    if schema.get("type", "object") != "object":
        raise ValueError(f'{what} must be a JSON Schema of "type": "object", given type {schema["type"]!r}')
    kind = validator_for(schema)
    try:
        kind.check_schema(schema, format_checker=FORMATS)
    except SchemaError as error:
        place = "/".join(map(str, error.path)) or "top"
        raise ValueError(f"{what} are no JSON Schema (at {place}): {error.message:.300}") from error
    resolver = REGISTRY.resolver_with_root(DRAFT202012.create_resource(schema))
    for reference in references(schema):
        try:
            resolver.lookup(reference)
        except Unresolvable as error:
            raise ValueError(f"{what}: the reference {reference!r} leads nowhere; put its target into $defs") from error
    return with_limit(kind, schema)(schema, registry=REGISTRY)


def references(schema: Any, root: bool = True) -> Iterator[str]:
    """The "$ref" values of a schema, except in parts that have an "$id" and hence another base."""
    if isinstance(schema, list):
        for item in schema:
            yield from references(item, False)
    if not isinstance(schema, Mapping) or ("$id" in schema and not root):
        return
    if isinstance(schema.get("$ref"), str):
        yield schema["$ref"]
    for key, value in schema.items():
        if key not in DATA:
            yield from references(value, False)


def object_of(properties: Mapping[str, Any], required: Iterable[str]) -> dict[str, Any]:
    """The schema of an object with these properties and no others."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """`schema` with OpenAPI 3.0's "nullable" of its top level rewritten as JSON Schema."""
    if "nullable" not in schema:
        return schema
    rest = {key: value for key, value in schema.items() if key != "nullable"}
    if schema["nullable"] is not True:
        return rest
    if "type" not in rest:
        return {"anyOf": [rest, {"type": "null"}]} if rest else {}
    kinds = rest["type"] if isinstance(rest["type"], list) else [rest["type"]]
    rest["type"] = [*kinds, "null"] if "null" not in kinds else kinds
    if "enum" in rest and None not in rest["enum"]:
        rest["enum"] = [*rest["enum"], None]
    return rest
