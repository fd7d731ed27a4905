"""Shared by the servers of this package: limits, disconnected clients, listening, ending."""

import argparse
import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

# Seconds between checks whether the client of a request is still connected.
POLL_S = 0.1


class BodyLimit:
    """ASGI middleware: refuses bodies above `limit` bytes with 413, also those that do not announce their length.

    remedy: the advice to the client.
    """

    def __init__(self, app: Any, limit: int, remedy: str) -> None:
        self._app, self._limit, self._remedy = app, limit, remedy

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
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
                await JSONResponse({"error": error}, 413)(scope, receive, send)
                return
        body = [{"type": "http.request", "body": b"".join(chunks), "more_body": False}]

        async def replay() -> Any:
            return body.pop() if body else await receive()

        await self._app(scope, replay, send)


def application(title: str, close: Callable[[], Awaitable[None]], max_bytes: int, remedy: str) -> FastAPI:
    """An application without paths, which awaits `close` at its end. max_bytes, remedy: see BodyLimit."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await close()

    app = FastAPI(title=title, lifespan=lifespan)
    app.add_middleware(BodyLimit, limit=max_bytes, remedy=remedy)
    return app


def malformed(errors: Sequence[Any], expected: str) -> str:
    """What is wrong with a body, from pydantic's errors (the first five), and what is expected."""
    found = [f"{'.'.join(map(str, error['loc'])) or 'body'}: {error['msg']}" for error in errors[:5]]
    return f"{'; '.join(found)}; expected {expected}."


def add_address(parser: argparse.ArgumentParser, port: int) -> None:
    """Add --host and --port to a server's command line."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for other machines too")
    parser.add_argument("--port", type=int, default=port, help="0 takes a free one")


async def while_connected(work: Coroutine[Any, Any, Any], connection: Request) -> Any:
    """The result of `work`, or None when the client disconnects first: then `work` is cancelled."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([task], timeout=POLL_S))[0]:
            if await connection.is_disconnected():
                return None
        return task.result()
    finally:
        task.cancel()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; ValueError when the address cannot be used."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(256)
    except (OSError, OverflowError) as error:
        raise ValueError(f"cannot listen on {host}:{port} ({error}); choose another --port or --host.") from error
    listener.set_inheritable(True)
    return listener


def address_of(listener: socket.socket, host: str) -> str:
    """http://HOST:PORT of the listener on `host`, for other machines if they can reach it."""
    host = socket.gethostname() if host in ("0.0.0.0", "::") else host
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def serve(app: FastAPI, listener: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM; running requests are finished first. Prints "stopped" at the end."""
    import uvicorn

    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=10)
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn finishes the running requests, then raises it again
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        print("stopped", flush=True)
