"""OpenAPI 3 documents (.json, .yaml): one tool per operation.

    GET /movie/{movie_id}/credits
    {"type": "object", "properties": {"movie_id": {"type": "integer"}, ...}, "required": ["movie_id"],
     "additionalProperties": false}

A tool's name is method and path as the document spells them, as in RestBench's gold paths. Its arguments are the
parameters of path, query, header and cookie, and `body`, the request body with its own schema. If two parameters have
the same name, the later one gets its place as a suffix: id, id_query. Arguments that the document does not have are
refused. A parameter that the path names and the document does not describe is a required string.

Published documents have faults. An operation that cannot be read is left out, and a warning gives the reason.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_ext.tools.catalogue.formats.files import Paths, as_paths, read_document
from verl_ext.tools.catalogue.formats.openapi_requests import Place, Request, base_urls, key_of, place_of
from verl_ext.tools.catalogue.formats.openapi_schema import SchemaReader, boolean
from verl_ext.tools.catalogue.schemas import object_of, validator
from verl_ext.tools.catalogue.types import ToolSpec

logger = logging.getLogger(__name__)

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
# Headers that OpenAPI says are no parameters.
NOT_PARAMETERS = frozenset({"accept", "content-type", "authorization"})
JSON_TYPE = "application/json"
BODY = "body"
MAX_FAULTS = 3  # that a warning quotes


def load(path: Paths, left_out: dict[str, str] | None = None) -> list[ToolSpec]:
    """The operations of OpenAPI 3 documents, in their order.

    Each tool's `returns` is the schema of its first successful response; `extra` has operationId, method, path,
    servers, tags, and `response` (status, description, content type, and an example if there is one). `request` says
    where the arguments go in an HTTP request (tools/rest).

    Args:
        left_out: receives the names of operations that cannot be read, with the reason.

    Raises:
        ValueError: a file is missing or no OpenAPI 3 document, or none of its operations can be read.
    """
    left_out = {} if left_out is None else left_out
    return [tool for one in as_paths(path) for tool in operations(read_document(one), one, left_out)]


def paths_of(document: Mapping[str, Any], path: Any) -> Mapping[str, Any]:
    """The paths of a document, which is called `path` in errors. Raises ValueError: it is no OpenAPI 3, or has none."""
    version = document.get("openapi")
    if not str(version).startswith("3."):
        given = f"openapi: {version!r}" if "swagger" not in document else f"swagger: {document['swagger']!r}"
        raise ValueError(
            f"{path}: given {given}, expected an OpenAPI 3 document. Remedy for Swagger 2: `npx swagger2openapi`"
        )
    if not isinstance(document.get("paths"), Mapping) or not document["paths"]:
        raise ValueError(f"{path}: the document has no paths")
    return document["paths"]


def operations(document: Mapping[str, Any], path: str | Path, left_out: dict[str, str]) -> list[ToolSpec]:
    """The operations of one document, which is called `path` in errors; see `load`."""
    tools, faults = [], []
    for route, item in paths_of(document, path).items():
        if route.startswith("x-") or item is None:
            continue
        try:
            shared = SchemaReader(document, route).resolve(item)
        except ValueError as error:
            faults.append(str(error))
            left_out |= {f"{method.upper()} {route}": f"{path}: {error}" for method in METHODS}
            continue
        for name in (f"{method.upper()} {route}" for method in METHODS if method in shared):
            try:
                tools.append(_operation(name, SchemaReader(document, name), shared, document))
            except Exception as error:  # any fault of a document
                faults.append(_reason(name, error))
                left_out[name] = f"{path}: {faults[-1]}"
    if faults and not tools:
        raise ValueError(f"{path}: {faults[0]}")
    if faults:
        more = f"; and {len(faults) - MAX_FAULTS} more" if len(faults) > MAX_FAULTS else ""
        told = "; ".join(f"{fault:.300}" for fault in faults[:MAX_FAULTS])
        logger.warning("%s: %d of %d operations are left out: %s%s", path, len(faults), len(faults + tools), told, more)
    return tools


def _reason(name: str, error: Exception) -> str:
    if isinstance(error, ValueError):
        return str(error)
    if isinstance(error, RecursionError):
        return f"{name}: nested too deeply"
    return f"{name}: malformed ({type(error).__name__}: {error})"


def _operation(name: str, reader: SchemaReader, shared: Mapping[str, Any], document: Mapping[str, Any]) -> ToolSpec:
    method, route = name.split(" ", 1)
    operation = reader.resolve(shared[method.lower()])
    parameters, places, body = _arguments(reader, shared, operation)
    validator(parameters, f"{name}: the parameters")
    response, returns = _response(reader, operation)
    servers = operation.get("servers") or shared.get("servers") or document.get("servers") or []
    texts = [str(operation.get(key) or "").strip() for key in ("summary", "description")]
    extra = {
        "operationId": operation.get("operationId"),
        "method": method,
        "path": route,
        "servers": [server.get("url") for server in servers if isinstance(server, Mapping)],
        "tags": list(operation.get("tags") or []),
        "response": response,
    }
    request = Request(method, route, places, body, base_urls(servers), *key_of(reader, document, operation))
    description = "\n".join(filter(None, dict.fromkeys(texts)))
    return ToolSpec(name, description, parameters, returns, "openapi", extra, request=request)


def _arguments(
    reader: SchemaReader, shared: Mapping[str, Any], operation: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[Place, ...], str | None]:
    """(JSON Schema of the arguments, their places in the request, content type of the body)."""
    places: list[Place] = []
    properties: dict[str, Any] = {}
    required: list[str] = []
    definitions: dict[str, Any] = {}
    body = reader.resolve(operation["requestBody"]) if operation.get("requestBody") else None
    for parameter in _parameters(reader, shared, operation):
        argument, place = str(parameter["name"]), parameter["in"]
        while argument in properties or (body and argument == BODY):
            argument = f"{argument}_{place}"
        places.append(place_of(argument, parameter))
        properties[argument] = _described(reader.part(_content(parameter)[0], definitions), parameter)
        if place == "path" or boolean(parameter.get("required")):
            required.append(argument)
    kind = None
    if body:
        schema, kind = _content(body)
        properties[BODY] = _described(reader.part(schema, definitions), body)
        if boolean(body.get("required")):
            required.append(BODY)
    arguments = object_of(properties, required)
    return ({**arguments, "$defs": definitions} if definitions else arguments), tuple(places), kind


def _parameters(reader: SchemaReader, shared: Mapping[str, Any], operation: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Parameters of the path, those of the operation, and those that only the route names.

    A parameter of the operation replaces one of the path with the same name and place.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for node in [*(shared.get("parameters") or []), *(operation.get("parameters") or [])]:
        parameter = reader.resolve(node)
        if not isinstance(parameter.get("name"), str) or not isinstance(parameter.get("in"), str):
            raise ValueError(f"{reader.name}: a parameter has no name or no place (in): {parameter!r:.120}")
        if parameter["in"] != "header" or parameter["name"].lower() not in NOT_PARAMETERS:
            found[parameter["name"], parameter["in"]] = parameter
    for name in re.findall(r"\{([^{}]+)\}", reader.name):
        found.setdefault((name, "path"), {"name": name, "in": "path", "schema": {"type": "string"}})
    return list(found.values())


def _content(node: Mapping[str, Any]) -> tuple[Any, str | None]:
    """(schema, content type) of a parameter or body; of several content types JSON is taken."""
    content = node.get("content")
    if not isinstance(content, Mapping) or not content:
        return node.get("schema", {}), None
    kind = min(content, key=lambda name: (name != JSON_TYPE, "json" not in name))
    return (content[kind] or {}).get("schema", {}), kind


def _described(schema: Any, node: Mapping[str, Any]) -> Any:
    """The schema of an argument, with description, example and deprecation that stand beside it in the parameter."""
    said = {key: node[key] for key in ("description", "example", "deprecated") if node.get(key) not in (None, "")}
    if not said:
        return schema
    return {**(schema if isinstance(schema, dict) else {}), **said}


def _response(reader: SchemaReader, operation: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """(status, description, content type and example of the first successful response; its schema)."""
    responses = operation.get("responses") or {}
    good = sorted(status for status in responses if str(status).startswith("2")) or [*responses][:1]
    if not good:
        return {}, None
    response = reader.resolve(responses[good[0]])
    schema, kind = _content(response)
    about = {"status": str(good[0]), "description": str(response.get("description") or "").strip()}
    if kind is None:
        return about, None
    media = response["content"][kind] or {}
    examples = _examples(reader, media.get("examples") or {})
    examples += [media["example"]] if "example" in media else []
    about |= {"content_type": kind, **({"example": examples[0]} if examples else {})}
    return about, reader.schema(schema)


def _examples(reader: SchemaReader, said: Any) -> list[Any]:
    """The values of `examples`: an object by name, or a list, which some documents have against the standard."""
    if isinstance(said, list):
        return [node["value"] if isinstance(node, Mapping) and "value" in node else node for node in said]
    return [reader.resolve(node).get("value") for node in said.values()]
