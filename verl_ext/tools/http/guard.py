"""Who may ask the servers of this package, and in which form. Errors are {"error": text, "kind": word}, all of them.

A server on 127.0.0.1 can be reached by every web page that a browser on this machine shows. JSON only: a page cannot
send that type without asking first. Host: a page cannot pretend to be this machine under a name of its own (DNS
rebinding). Beyond this machine: the token.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import os
import socket
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from verl_ext.tools.http.client import TOKEN

# Seconds for a request to arrive as a whole.
REQUEST_S = 15.0
KINDS = {401: "token", 404: "unknown_path", 405: "method", 413: "too_large", 415: "not_json", 421: "other_host",
         422: "malformed", 500: "internal"}  # fmt: skip


def refusal(status: int, error: str, kind: str = "") -> JSONResponse:
    """The answer to a request that is not served. kind: by default that of the status in KINDS.

    With 503 (busy) it asks the client to come again after a second. Our clients then wait for their turn.
    """
    headers = {"Retry-After": "1"} if status == 503 else None
    return JSONResponse({"error": error, "kind": kind or KINDS.get(status, "refused")}, status, headers)


class Guard:
    """ASGI middleware that refuses requests to another host (421), without the token (401), not in JSON (415), and with
    a body above `limit` bytes (413), even if they do not announce its length.

    hosts: names of this server, beside its addresses, localhost and the machine's name. remedy: the advice to clients
    with too large bodies.
    """

    def __init__(self, app: Any, hosts: Collection[str], limit: int, remedy: str) -> None:
        self._app, self._limit, self._remedy = app, limit, remedy
        self._hosts = {"localhost", *(name.lower().rstrip(".") for name in (socket.gethostname(), *hosts))}
        self._token = os.environ.get(TOKEN, "").encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if (refused := self._refused(scope)) is not None:
            await refused(scope, receive, send)
            return
        chunks, size, more = [], 0, scope["method"] in ("POST", "PUT", "PATCH")
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            chunks.append(message.get("body", b""))
            size, more = size + len(chunks[-1]), message.get("more_body", False)
            if size > self._limit:
                error = f"the body is larger than {self._limit} bytes; {self._remedy}."
                await refusal(413, error)(scope, receive, send)
                return
        body = [{"type": "http.request", "body": b"".join(chunks), "more_body": False}]

        async def replay() -> Any:
            return body.pop() if body else await receive()

        await self._app(scope, replay, send)

    def _refused(self, scope: Any) -> JSONResponse | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._is_here(host):
            return refusal(421, f"this server is not {host!r:.200}. Remedy: start it with --allowed_hosts NAME.")
        if self._token:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + self._token):
                return refusal(401, f"the token is missing or wrong. Remedy: set {TOKEN} as the server has it.")
        kind = headers.get(b"content-type", b"").decode("latin-1")
        if scope["method"] == "POST" and kind.partition(";")[0].strip().lower() != "application/json":
            return refusal(415, f"given Content-Type {kind!r:.100}; expected application/json.")
        return None

    def _is_here(self, host: str) -> bool:
        """Whether the header Host names this machine. Any address does: only names can be rebound."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
            return name in self._hosts or bool(ipaddress.ip_address(name))
        except ValueError:
            return False


class Punctual(H11Protocol):
    """uvicorn's HTTP, which by itself waits without end for the rest of a request."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A client has connected."""
        super().connection_made(transport)
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        """A part of a request has arrived."""
        super().data_received(data)
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        super().connection_lost(exc)
        if self._late is not None:
            self._late.cancel()

    def send_400_response(self, msg: str) -> None:
        """Answer something that is no HTTP."""
        super().send_400_response(json.dumps({"error": msg, "kind": KINDS[422]}))

    def _expect_request(self) -> None:
        """Close the connection in REQUEST_S, unless a request has arrived and is not yet answered."""
        cycle = self.cycle
        whole = cycle is not None and not cycle.more_body and not cycle.response_complete
        if whole and self._late is not None:
            self._late.cancel()
            self._late = None
        elif not whole and self._late is None:
            self._late = self.loop.call_later(REQUEST_S, self.transport.close)
