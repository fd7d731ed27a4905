"""A real server made from an OpenAPI document alone: it checks key, parameters and body, and answers from the schemas.

It reads the document by itself and shares no code with what it tests.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from jsonschema import Draft202012Validator
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.tools.requesting import running

METHODS = ("get", "put", "post", "delete", "patch")


@dataclass
class Api:
    """examples: answer with those of the schemas. url: base URL.

    asked: target (raw path and query), headers and body of each request.
    answers: given responses by "METHOD /path" of the document, which come first, one per request.
    """

    document: dict[str, Any]
    key: str | None = None
    examples: bool = True
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, list[Any]] = field(default_factory=dict)

    def app(self) -> Starlette:
        # A fixed path before one with a parameter, as OpenAPI wants: /movie/popular before /movie/{movie_id}.
        items = sorted(self.document["paths"].items(), key=lambda pair: pair[0].count("{"))
        table = [
            (
                method.upper(),
                re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)),
                self._endpoint(method, path, item),
            )
            for path, item in items
            for method in METHODS
            if method in item
        ]

        async def dispatch(request: Request) -> Response:
            raw = request.scope["raw_path"].decode().partition("?")[0]  # quoted: a slash in a parameter is none
            for method, pattern, endpoint in table:
                match = re.fullmatch(pattern, raw)
                if match and method == request.method:
                    found = {name: unquote(value) for name, value in match.groupdict().items()}
                    return await endpoint(request, found)
            return JSONResponse({"message": f"no operation {request.method} {raw}"}, 404)

        return Starlette(routes=[Route("/{rest:path}", dispatch, methods=[one.upper() for one in METHODS])])

    def _endpoint(self, method: str, path: str, item: dict[str, Any]) -> Any:
        operation = self.resolve(item[method])
        parameters = [self.resolve(one) for one in [*item.get("parameters", []), *operation.get("parameters", [])]]

        async def endpoint(request: Request, found: dict[str, str]) -> Response:
            body = await request.body()
            raw = request.scope["raw_path"].decode().partition("?")[0] + (
                f"?{request.url.query}" if request.url.query else ""
            )
            self.asked.append(
                {"method": request.method, "target": raw, "headers": dict(request.headers), "body": body.decode()}
            )
            name = f"{request.method} {path}"
            if self.answers.get(name):
                return self.answers[name].pop(0)
            if self.key is not None and not self._has_key(operation, request):
                return JSONResponse({"message": "Invalid API key"}, 401)
            problem = self._problem(parameters, operation, request, found, body)
            if problem:
                return JSONResponse({"message": problem}, 422)
            return self._answer(operation)

        return endpoint

    def _has_key(self, operation: dict[str, Any], request: Request) -> bool:
        wanted = operation.get("security", self.document.get("security")) or []
        for alternative in wanted:
            for name in alternative:
                scheme = self.document["components"]["securitySchemes"][name]
                place = {"query": request.query_params, "header": request.headers}.get(scheme.get("in"))
                given = request.headers.get("authorization") if place is None else place.get(scheme["name"])
                if given == (f"Bearer {self.key}" if place is None else self.key):
                    return True
        return not wanted

    def _problem(
        self, parameters: list[Any], operation: dict[str, Any], request: Request, found: dict[str, str], body: bytes
    ) -> str:
        places = {"query": request.query_params, "header": request.headers, "cookie": request.cookies}
        known = {one["name"] for one in parameters if one["in"] == "query"}
        known |= {one.get("name") for one in self.document.get("components", {}).get("securitySchemes", {}).values()}
        for one in parameters:
            required = str(one.get("required")).lower() == "true"
            if one["in"] in places and required and one["name"] not in places[one["in"]]:
                return f"{one['in']} parameter {one['name']} is missing"
            if one["in"] == "path" and self.resolve(one.get("schema", {})).get("type") == "integer":
                if not found[one["name"]].isdigit():
                    return f"{one['name']} must be an integer"
        stray = [name for name in request.query_params if name.partition("[")[0] not in known]
        if stray:
            return f"unknown query parameters {stray}"
        wanted = self.resolve(operation.get("requestBody") or {}).get("content", {}).get("application/json")
        if wanted and body:
            schema = {"$defs": {}, **self.resolve(wanted.get("schema", {}))}
            error = next(Draft202012Validator(schema).iter_errors(json.loads(body)), None)
            return error.message if error else ""
        return "a body is missing" if wanted and operation["requestBody"].get("required") is True else ""

    def _answer(self, operation: dict[str, Any]) -> Response:
        responses = operation.get("responses", {})
        status = min((code for code in responses if str(code).startswith("2")), default="200")
        content = self.resolve(responses.get(status, {})).get("content", {}).get("application/json")
        if not content:
            return Response(status_code=int(status))
        return JSONResponse(self.instance(content.get("schema", {})), int(status))

    def instance(self, schema: Any, depth: int = 0) -> Any:
        """A value of the schema; below some levels an empty one."""
        schema = self.resolve(schema)
        if self.examples and ("example" in schema or "default" in schema):
            return schema.get("example", schema.get("default"))
        if schema.get("enum"):
            return schema["enum"][0]
        for key in ("allOf", "oneOf", "anyOf"):
            if schema.get(key):
                return self.instance(schema[key][0], depth + 1)
        kind = schema.get("type") or ("object" if "properties" in schema else None)
        if kind == "object":
            named = schema.get("properties", {}) if depth < 6 else {}
            return {name: self.instance(one, depth + 1) for name, one in named.items()}
        if kind == "array":
            return [self.instance(schema.get("items", {}), depth + 1)] if depth < 6 else []
        return {"integer": 7, "number": 0.5, "boolean": True, "string": "text"}.get(str(kind))

    def resolve(self, node: Any) -> Any:
        """`node`, or the target of its reference."""
        while isinstance(node, dict) and "$ref" in node:
            target: Any = self.document
            for part in node["$ref"].removeprefix("#/").split("/"):
                target = target[part.replace("~1", "/").replace("~0", "~")]
            node = target
        return node


@contextmanager
def serving(document: dict[str, Any], key: str | None = None) -> Any:
    """An `Api` that a thread of this process serves."""
    api = Api(document, key)
    with running(api.app()) as url:
        api.url = url
        yield api
