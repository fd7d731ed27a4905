"""Where the arguments of an operation of an OpenAPI document go in its HTTP request; used by tools/rest.

Request("GET", "/albums/{id}", (Place("id", "id", "path"), Place("ids", "ids", "query", explode=False)), …)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_ext.tools.catalogue.formats.openapi_schema import SchemaReader, boolean

BEARER, HEADER, QUERY = "bearer", "header", "query"


@dataclass(frozen=True)
class Place:
    """Where one argument goes.

    argument: its name among the tool's arguments. name: of the parameter in the request.
    where: path, query, header or cookie. style, explode: as OpenAPI defines them, with its defaults.
    as_json: the value is written as JSON (a parameter with `content`).
    """

    argument: str
    name: str
    where: str
    style: str = "simple"
    explode: bool = False
    as_json: bool = False


@dataclass(frozen=True)
class Key:
    """Where the server's key goes. kind: bearer, header or query; name: of the header or query parameter."""

    kind: str
    name: str = ""


@dataclass(frozen=True)
class Request:
    """One operation.

    method: in capitals. path: with {names}. body: the content type of the argument `body`, None without one.
    servers: base URLs, variables filled in with their defaults. key: None if the document asks for none that is known;
    open: the document says that this operation needs no key.
    """

    method: str
    path: str
    places: tuple[Place, ...] = ()
    body: str | None = None
    servers: tuple[str, ...] = ()
    key: Key | None = None
    open: bool = False


def place_of(argument: str, parameter: Mapping[str, Any]) -> Place:
    """The place of the parameter that is the tool's `argument`."""
    where = str(parameter["in"])
    style = str(parameter.get("style") or ("form" if where in ("query", "cookie") else "simple"))
    explode = boolean(parameter["explode"]) if "explode" in parameter else style == "form"
    return Place(argument, str(parameter["name"]), where, style, explode, bool(parameter.get("content")))


def base_urls(servers: Sequence[Any]) -> tuple[str, ...]:
    """The URLs of `servers`, each variable replaced by its default."""
    found = []
    for server in servers:
        if isinstance(server, Mapping) and isinstance(server.get("url"), str):
            url, variables = server["url"], server.get("variables")
            for name, variable in variables.items() if isinstance(variables, Mapping) else ():
                url = url.replace(f"{{{name}}}", str(variable.get("default", "") if isinstance(variable, dict) else ""))
            found.append(url)
    return tuple(found)


def key_of(reader: SchemaReader, document: Mapping[str, Any], operation: Mapping[str, Any]) -> tuple[Key | None, bool]:
    """(the first key of the operation's `security` that one secret can satisfy, whether it needs none).

    A document whose `security` is malformed asks for no key: the settings of tools/rest can say where it goes.
    """
    wanted = operation.get("security", document.get("security"))
    if not isinstance(wanted, list):
        return None, False
    try:
        schemes = (document.get("components") or {}).get("securitySchemes") or {}
        for alternative in wanted:
            keys = [_key(reader.resolve(schemes[name])) for name in alternative if name in schemes]
            if len(keys) == 1 and keys[0] is not None:
                return keys[0], False
    except (ValueError, TypeError, AttributeError):
        return None, False
    return None, not any(wanted)


def _key(scheme: Mapping[str, Any]) -> Key | None:
    kind = scheme.get("type")
    if kind == "apiKey" and scheme.get("in") in (HEADER, QUERY):
        return Key(scheme["in"], str(scheme.get("name")))
    bearer = kind in ("oauth2", "openIdConnect") or (kind == "http" and str(scheme.get("scheme")).lower() == BEARER)
    return Key(BEARER) if bearer else None
