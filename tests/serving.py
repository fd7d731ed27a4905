"""A real HTTP server with the interface of OpenAI's chat completions, in a thread; its behaviour is a function."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Callable
from typing import Any

from aiohttp import web


def answer(text: Any = "Paris", reason: str = "stop", **message: Any) -> dict[str, Any]:
    """The body of a chat completion."""
    return {
        "choices": [{"message": {"role": "assistant", "content": text, **message}, "finish_reason": reason}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2},
    }


class ChatServer:
    """Serves until the block ends.

    Args:
        behave: (body of the request, its number) -> body, (status, body), (status, body, headers), or a float: seconds
            after which "Paris" is answered. A body is JSON, or bytes as they are.
        models: names under /models; None: the server has no such page.
    """

    def __init__(self, behave: Callable[[dict[str, Any], int], Any] | None = None, models: Any = ("tiny",)):
        self.behave = behave or (lambda body, number: answer())
        self.models = models
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.running = self.peak = 0

    def __enter__(self) -> ChatServer:
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(300)
        return self

    def __exit__(self, *_: Any) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(300)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(300)

    def _serve(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self.start())
        started.set()
        self._loop.run_forever()

    async def start(self, port: int = 0) -> None:
        """Listen; `url` is the base URL from here on."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        if self.models is not None:
            app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def _models(self, request: web.Request) -> web.Response:
        if isinstance(self.models, int):
            return web.Response(status=self.models)
        return web.json_response({"data": [{"id": name} for name in self.models]})

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        number = len(self.requests)
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            given = self.behave(body, number)
            if inspect.isawaitable(given):
                given = await given
            if isinstance(given, float):
                await asyncio.sleep(given)
                given = answer()
            status, content, *headers = given if isinstance(given, tuple) else (200, given)
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            return web.Response(status=status, body=data, headers=headers[0] if headers else None)
        finally:
            self.running -= 1


def question_of(body: dict[str, Any]) -> str:
    """The text of a request's last message."""
    return body["messages"][-1]["content"]
