"""Helpers of the chat client's tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tests.serving import ChatServer
from verl_ext.tools.chat import ChatEndpoint

GREEDY = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "max_tokens": 9, "seed": 2**62 + 5}
SAMPLED = {**GREEDY, "temperature": 0.7, "top_p": 0.9, "top_k": 20}
CHAT = [{"role": "user", "content": "Where is the Louvre?"}]


def ask(
    url: str, *samplings: dict[str, Any], messages: Sequence[Any] = CHAT, **options: Any
) -> tuple[ChatEndpoint, Any]:
    """The client, and its answers to calls one after the other; exceptions in their places."""

    async def scenario() -> tuple[ChatEndpoint, Any]:
        llm = ChatEndpoint(url, **{"model": "tiny", "retries": 3, **options})
        done = []
        for sampling in samplings or [GREEDY]:
            done += await asyncio.gather(llm.complete(list(messages), sampling), return_exceptions=True)
        await llm.close()
        return llm, done

    return asyncio.run(scenario())


def serve_and_ask(
    behave: Callable[..., Any] | None, *samplings: dict[str, Any], **options: Any
) -> tuple[Any, Any, Any]:
    """(client, answers, bodies of the requests) of calls to a server that behaves so."""
    with ChatServer(behave) as server:
        llm, done = ask(server.url, *samplings, **options)
    return llm, done, server.requests
