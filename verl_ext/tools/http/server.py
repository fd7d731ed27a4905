"""Shared by the servers of this package: bodies, errors, disconnected clients, listening, ending."""

import argparse
import asyncio
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from verl_ext.tools.http.guard import Guard, Punctual, refusal

# Seconds between checks whether the client of a request is still connected.
POLL_S = 0.1
Body = TypeVar("Body", bound=BaseModel)


def application(
    title: str, close: Callable[[], Awaitable[None]], max_bytes: int, remedy: str, hosts: Collection[str]
) -> FastAPI:
    """An application without paths, which awaits `close` at its end. max_bytes, remedy, hosts: see Guard."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await close()

    async def refused(_: Request, error: Any) -> JSONResponse:
        return refusal(error.status_code, str(error.detail))

    async def failed(_: Request, error: Exception) -> JSONResponse:
        return refusal(500, f"the server failed ({type(error).__name__}); its output has the traceback.")

    app = FastAPI(title=title, lifespan=lifespan, openapi_url=None)
    app.add_middleware(Guard, hosts=hosts, limit=max_bytes, remedy=remedy)
    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(Exception, failed)
    return app


async def body_of(connection: Request, form: type[Body], expected: str) -> Body:
    """The body of a request, which is a `form`.

    Raises:
        HTTPException: 422, with what is wrong (the first five errors) and what is expected.
    """
    try:
        return form.model_validate_json(await connection.body())
    except ValidationError as error:
        found = [f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}" for one in error.errors()[:5]]
        raise HTTPException(422, f"{'; '.join(found)}; expected {expected}.") from error


def add_address(parser: argparse.ArgumentParser, port: int) -> None:
    """Add --host, --port and --allowed_hosts to a server's command line."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for other machines too")
    parser.add_argument("--port", type=int, default=port, help="0 takes a free one")
    known = "beside localhost, its addresses and the machine's name"
    parser.add_argument("--allowed_hosts", nargs="+", default=[], help=f"names under which clients ask it, {known}")


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


def answer_at_once(listener: socket.socket) -> None:
    """Send all that is written to the connections of this listener without delay (TCP_NODELAY).

    asyncio sets this only for listeners that it makes itself. Without it an answer, whose head and body are written one
    after the other, waits up to 40 ms until the client has confirmed the head.
    """
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; ValueError when the address cannot be used."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        answer_at_once(listener)
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


def configuration(app: FastAPI) -> uvicorn.Config:
    """uvicorn's configuration for an application."""
    return uvicorn.Config(app, http=Punctual, ws="none", log_level="warning", timeout_graceful_shutdown=10)


def serve(app: FastAPI, listener: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM; running requests are finished first. Prints "stopped" at the end."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # thousands of clients may be connected
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn finishes the running requests, then raises it again
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        uvicorn.Server(configuration(app)).run(sockets=[listener])
    finally:
        print("stopped", flush=True)
