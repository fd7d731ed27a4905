"""Arguments of a tool as an HTTP request: path, query, headers, cookies and body, as the OpenAPI document places them.

    written(request, {"id": "4aawyAB9", "ids": ["a", "b"]}).target     "/albums/4aawyAB9?ids=a,b"

A model writes the arguments. They are quoted, so that none leaves its place: no further path, parameter or header.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from verl_ext.tools.catalogue.formats.openapi_requests import Place, Request
from verl_ext.tools.catalogue.types import BAD_ARGUMENTS, CallError

JSON_TYPE, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
MAX_TARGET = 8_000  # characters of path and query; servers refuse more (nginx: 8 kB)
BODY = "body"
SEPARATORS = {"spaceDelimited": " ", "pipeDelimited": "|"}
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
DOTS = re.compile(r"\.{1,2}\Z")


@dataclass
class Written:
    """A request without its server and key.

    path, query (names and values): quoted. body: encoded. fields: of a multipart form, in place of it.
    """

    path: str
    query: list[tuple[str, str]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    fields: list[tuple[str, str]] | None = None

    @property
    def target(self) -> str:
        """Path and query, as they are sent."""
        query = "&".join(f"{name}={value}" for name, value in self.query)
        return f"{self.path}?{query}" if query else self.path


def written(request: Request, arguments: Mapping[str, Any]) -> Written:
    """The request of a call, whose `arguments` fit the tool's schema.

    Raises:
        CallError: an argument cannot be sent in its place (kind bad_arguments).
    """
    out, cookies = Written(request.path), []
    for place in request.places:
        value = arguments.get(place.argument)
        if value is None and place.where != "path":
            continue
        if place.as_json:
            value = json.dumps(value, ensure_ascii=False)
        if place.where == "path":
            out.path = out.path.replace(f"{{{place.name}}}", _segment(place, value))
        elif place.where == "query":
            out.query += _pairs(place, value)
        elif place.where == "header":
            out.headers[place.name] = _header(place, _joined(value, place.explode))
        else:
            cookies += [f"{name}={text}" for name, text in _pairs(place, value)]
    if cookies:
        out.headers["Cookie"] = "; ".join(cookies)
    if arguments.get(BODY) is not None and not any(place.argument == BODY for place in request.places):
        _write_body(out, request.body or JSON_TYPE, arguments[BODY])
    if len(out.target) > MAX_TARGET:
        raise _bad(f"path and query have {len(out.target)} characters, allowed are {MAX_TARGET}")
    return out


def quoted(text: str) -> str:
    """`text` for a path or a query: no character of it has a meaning there."""
    return quote(text, safe="", errors="replace")


def _segment(place: Place, value: Any) -> str:
    """The value as one part of a path: slashes are quoted, and it is no "." or "..", which servers resolve."""
    text = _joined(value, place.explode, quoted)
    pairs = _pairs(place, value) if place.explode and isinstance(value, list | dict) else []
    if place.style == "matrix":
        pairs = pairs or [(quoted(place.name), text)]
        whole = "".join(f";{name}={said}" for name, said in pairs)
    elif place.style == "label":
        parts = [f"{name}={said}" if isinstance(value, dict) else said for name, said in pairs] or [text]
        whole = "".join(f".{part}" for part in parts)
    else:
        whole = text
    if not text or DOTS.match(text) or DOTS.match(whole):
        raise _bad(f"{place.argument}={text!r} cannot stand in a path")
    return whole


def _pairs(place: Place, value: Any) -> list[tuple[str, str]]:
    """Quoted names and values of a query, or of cookies."""
    name = quoted(place.name)
    if isinstance(value, dict) and (place.style == "deepObject" or place.explode):
        inside = f"{name}[{{}}]" if place.style == "deepObject" else "{}"
        said = [(quoted(str(key)), item) for key, item in value.items() if item is not None]
        return [(inside.format(key), quoted(_text(item))) for key, item in said]
    if isinstance(value, list) and place.explode:
        return [(name, quoted(_text(item))) for item in value]
    if isinstance(value, list) and place.style in SEPARATORS:
        return [(name, quoted(SEPARATORS[place.style]).join(quoted(_text(item)) for item in value))]
    return [] if value == [] else [(name, _joined(value, False, quoted))]


def _header(place: Place, text: str) -> str:
    if CONTROL.search(text):
        raise _bad(f"{place.argument} has line breaks or control characters, which no header may have")
    return text


def _joined(value: Any, explode: bool, write: Callable[[str], str] = str) -> str:
    """OpenAPI's style `simple`: a,b and key,value or key=value; each part as `write` writes it."""
    if isinstance(value, list):
        return ",".join(write(_text(item)) for item in value)
    if isinstance(value, dict):
        between = "=" if explode else ","
        return ",".join(f"{write(str(key))}{between}{write(_text(item))}" for key, item in value.items())
    return write(_text(value))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # without lone surrogates
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _write_body(out: Written, kind: str, body: Any) -> None:
    media = kind.partition(";")[0].strip().lower()
    if media == MULTIPART and isinstance(body, dict):
        out.fields = [(str(name), _text(value)) for name, value in body.items() if value is not None]
        return
    if media == FORM and isinstance(body, dict):
        pairs = [(name, one) for name, value in body.items() for one in (value if isinstance(value, list) else [value])]
        text = urlencode([(name, _text(value)) for name, value in pairs if value is not None])
    else:
        is_text = isinstance(body, str) and not (media == JSON_TYPE or media.endswith("+json"))
        text = body if is_text else json.dumps(body, ensure_ascii=False)
    out.body, out.headers["Content-Type"] = text.encode("utf-8", "replace"), kind if "*" not in kind else JSON_TYPE


def _bad(problem: str) -> CallError:
    return CallError(problem, BAD_ARGUMENTS)
