"""The HTTP server of a process: finds the session of a request by its API key, and answers in the client's form.

POST /v1/chat/completions   OpenAI's, streamed or not
GET  /v1/models             the agents
POST /v1/messages           Anthropic's, streamed or not
POST /v1/tool               {"name": …, "arguments": {…}} -> {"result": …}     a tool of `mas.tools`
POST /v1/reward             {"agent": …, "value": …}
POST /v1/result             {"result": …}, of a program in another process
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import resource
import secrets
import socket
import traceback
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from verl_ext.gateway.anthropic import events, message, read_anthropic
from verl_ext.gateway.errors import HEADERS, ApiError, ClientLeft
from verl_ext.gateway.requests import ChatRequest, arguments_of, read_chat
from verl_ext.gateway.responses import Given, chunks, completion
from verl_ext.gateway.session import GatewaySession
from verl_ext.gateway.settings import GatewaySection
from verl_ext.mas.json_texts import read_json
from verl_ext.mas.types import ToolFailed
from verl_ext.tools.http.server import answer_at_once

logger = logging.getLogger(__name__)
Handler = Callable[[GatewaySession, Any, Request], Awaitable[Response]]
# Seconds for which an idle connection stays open: longer than clients keep one. With uvicorn's 5 s, as httpx has,
# a request is now and then sent on a connection that is being closed, and fails.
KEEP_ALIVE = 3600


class Gateway:
    """The server of one event loop.

    Args:
        settings: of `mas.gateway`.
    """

    def __init__(self, settings: GatewaySection):
        self.settings, self.port = settings, 0
        self.sessions: dict[str, GatewaySession] = {}
        # Errors of the server itself that have been logged, by type and place.
        self._logged: set[tuple[Any, ...]] = set()
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The address of the server, without a path."""
        host = "127.0.0.1" if self.settings.host in ("0.0.0.0", "::") else self.settings.host
        return f"http://{host}:{self.port}"

    async def start(self) -> None:
        """Listen.

        Raises:
            ValueError: `mas.gateway.host` and `port` cannot be used.
        """
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a thousand programs may be connected
        listener = _listen(self.settings)
        self.port = listener.getsockname()[1]
        application = self._application()
        config = uvicorn.Config(application, ws="none", log_level="warning", lifespan="off", access_log=False)
        config.timeout_keep_alive = KEEP_ALIVE
        self._server = _Server(config)
        self._serving = asyncio.ensure_future(self._server.serve(sockets=[listener]))
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = self._server.force_exit = True
            await self._serving

    @contextlib.contextmanager
    def open(self, session: GatewaySession) -> Iterator[str]:
        """Let a session be asked under an API key while the block runs."""
        key = f"sk-verl-ext-{secrets.token_urlsafe(32)}"
        self.sessions[key] = session
        try:
            yield key
        finally:
            del self.sessions[key]

    def _application(self) -> Starlette:
        handlers: dict[str, Handler] = {
            "chat/completions": self._chat,
            "messages": self._messages,
            "models": self._models,
            "tool": self._tool,
            "reward": self._reward,
            "result": self._result,
        }
        routes = [
            Route(f"/v1/{name}", self._handle(handler), methods=["GET" if name == "models" else "POST"])
            for name, handler in handlers.items()
        ]
        known = ", ".join(route.path for route in routes)

        async def unknown(request: Request, error: Any) -> JSONResponse:
            hint = " The Responses API is not served: let the client use chat completions." * (
                "responses" in request.url.path
            )
            message = f"{request.method} {request.url.path} is not served; served are {known}.{hint}"
            return _refusal(ApiError(error.status_code, message, "unknown_path"), request)

        return Starlette(routes=routes, exception_handlers={HTTPException: unknown})

    def _handle(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """A route that finds the session and answers errors in the client's form."""

        async def route(request: Request) -> Response:
            try:
                session = self._session(request)
                body = await self._body(request) if request.method == "POST" else None
                return await handler(session, body, request)
            except ApiError as error:
                return _refusal(error, request)
            except (ClientDisconnect, ClientLeft):
                return Response()  # nobody reads it
            except RecursionError as error:
                return _refusal(ApiError(400, f"the request is nested too deeply: {error}", "invalid_body"), request)
            except Exception as error:
                return _refusal(self._mistake(error), request)

        return route

    def _mistake(self, error: Exception) -> ApiError:
        """The answer to a request on which the server itself fails; the log has each such error once."""
        message = f"{type(error).__name__}: {error}"
        place = (type(error), *traceback.extract_tb(error.__traceback__)[-1][:2])
        if place not in self._logged:
            self._logged.add(place)
            logger.error("the gateway failed on a request: %s", message, exc_info=error)
        return ApiError(500, message, "internal")

    def _session(self, request: Request) -> GatewaySession:
        scheme, _, token = request.headers.get("authorization", "").strip().partition(" ")
        keys = (token.strip() if scheme.lower() == "bearer" else scheme, request.headers.get("x-api-key", "").strip())
        session = next((self.sessions[key] for key in keys if key in self.sessions), None)
        if session is None:
            raise ApiError(
                401,
                "this API key belongs to no trajectory that runs. A program gets its key with its endpoint, and the "
                "key ends with the trajectory",
                "invalid_api_key",
            )
        return session

    async def _body(self, request: Request) -> Any:
        size, parts, most = 0, [], self.settings.max_body
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise ApiError(413, f"the body is larger than mas.gateway.max_body={most} bytes", "too_large")
            parts.append(part)
        try:
            return read_json(b"".join(parts))
        except ValueError as error:
            raise ApiError(400, f"the body is no JSON: {error}", "invalid_body") from None

    async def _chat(self, session: GatewaySession, body: Any, http: Request) -> Response:
        request = read_chat(body, session.workflow.agents)
        given = await self._answer(session, request, body, http)
        if request.stream:
            return StreamingResponse(_each(chunks(request, given)), media_type="text/event-stream")
        return _json(completion(request, given))

    async def _messages(self, session: GatewaySession, body: Any, http: Request) -> Response:
        request = read_anthropic(body, session.workflow.agents)
        given = await self._answer(session, request, body, http)
        if request.stream:
            return StreamingResponse(_each(events(request, given)), media_type="text/event-stream")
        return _json(message(request, given))

    async def _answer(self, session: GatewaySession, request: ChatRequest, body: Any, http: Request) -> Given:
        for name in request.ignored:
            session.remark(f"the parameter {name} of requests is ignored")
        if request.messages[-1]["role"] == "assistant":
            session.remark(
                "the last message of a request is the assistant's: the answer is a turn of its own, and does not go on "
                "from it"
            )
        self._remark_on_sampling(session, body)
        return await session.chat(request, http.is_disconnected)

    def _remark_on_sampling(self, session: GatewaySession, body: dict[str, Any]) -> None:
        """Say that the policy's temperature and top_p are those of the configuration, whatever is asked for."""
        for name in ("temperature", "top_p"):
            own = session.forest.sampling.get(name)
            if body.get(name) is not None and body[name] != own:
                session.remark(f"{name}={body[name]} of requests is ignored: the policy is sampled at {name}={own}")

    async def _models(self, session: GatewaySession, body: Any, http: Request) -> Response:
        agents = [
            {"id": name, "object": "model", "created": 0, "owned_by": "verl_ext"} for name in session.workflow.agents
        ]
        return _json({"object": "list", "data": agents})

    async def _tool(self, session: GatewaySession, body: Any, http: Request) -> Response:
        name, arguments = _fields(body, "name", "arguments")
        try:
            result = await session.tool(str(name), arguments_of(arguments))
        except ToolFailed as error:
            raise ApiError(424, str(error), "tool_failed") from error
        except (ValueError, TypeError) as error:
            raise ApiError(400, str(error), "invalid") from error
        try:
            return _json({"result": result})
        except (ValueError, TypeError, RecursionError) as error:
            raise ApiError(424, f"the result of tool {name!r} is no JSON: {error}", "tool_failed") from error

    async def _reward(self, session: GatewaySession, body: Any, http: Request) -> Response:
        agent, value = _fields(body, "agent", "value")
        if not isinstance(agent, str):
            raise ApiError(400, f"agent must be a text, but is {agent!r:.100}", "invalid", "agent")
        try:
            number = float(value)
        except (ValueError, TypeError, OverflowError):
            message = f"value={value!r:.100} must be a number: the reward of agent {agent!r}"
            raise ApiError(400, message, "invalid", "value") from None
        try:
            session.reward(agent, number)
        except (ValueError, TypeError) as error:
            raise ApiError(400, str(error), "invalid") from error
        return _json({"agent": agent, "value": value})

    async def _result(self, session: GatewaySession, body: Any, http: Request) -> Response:
        (session.posted,) = _fields(body, "result")
        return _json({})


class _Server(uvicorn.Server):
    """uvicorn's server beside other work: signals are not its business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's handlers as they are."""
        yield


def _fields(body: Any, *names: str) -> tuple[Any, ...]:
    if not isinstance(body, dict) or not set(names) <= set(body):
        raise ApiError(400, f"the body must be a JSON object with {', '.join(names)}", "invalid_body")
    return tuple(body[name] for name in names)


async def _each(events: Iterator[bytes]) -> Any:
    for event in events:
        yield event


def _json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    data = json.dumps(body, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass")
    return Response(data, status, headers, media_type="application/json")


def _refusal(error: ApiError, request: Request) -> JSONResponse:
    body = error.anthropic() if request.url.path.startswith("/v1/messages") else error.openai()
    return JSONResponse(body, error.status, headers=HEADERS)


def _listen(settings: GatewaySection) -> socket.socket:
    """A listening socket; with a given port, the first free one from there on."""
    ports = [0] if settings.port == 0 else range(settings.port, min(settings.port + settings.ports, 65_536))
    problem: Exception | None = None
    for port in ports:
        try:
            listener = socket.create_server((settings.host, port), backlog=2048)
            answer_at_once(listener)
            return listener
        except OSError as error:
            problem = error
    raise ValueError(
        f"mas.gateway.host={settings.host} mas.gateway.port={settings.port}: cannot listen there ({problem}). Remedy: "
        "mas.gateway.port=0 takes any free port"
    )


_STARTING: dict[asyncio.AbstractEventLoop, asyncio.Task[Gateway]] = {}


async def gateway_here(settings: GatewaySection) -> Gateway:
    """The server of this event loop, started when it is first needed.

    Raises:
        ValueError: see `Gateway.start`.
    """
    loop = asyncio.get_running_loop()
    for other in [one for one in _STARTING if one.is_closed()]:
        del _STARTING[other]
    if loop not in _STARTING:
        _STARTING[loop] = asyncio.ensure_future(_start(settings))
    return await asyncio.shield(_STARTING[loop])


async def _start(settings: GatewaySection) -> Gateway:
    gateway = Gateway(settings)
    await gateway.start()
    return gateway


async def close_here() -> None:
    """Stop the server of this event loop, if there is one."""
    starting = _STARTING.pop(asyncio.get_running_loop(), None)
    if starting is not None:
        await (await starting).close()
