"""A judge that answers by rule, behind a real HTTP server."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

from tests.serving import ChatServer, answer
from verl_ext.rewards.judge import Judge
from verl_ext.tools.chat import ChatEndpoint

Rule = Callable[[dict[str, Any]], Any]


def fields_of(body: dict[str, Any]) -> dict[str, Any]:
    """The fields that a request to the judge shows."""
    lines = re.findall(r"^([A-Z_]+): (.*)$", body["messages"][-1]["content"], re.M)
    return {name.lower(): json.loads(value) for name, value in lines}


def serving(rule: Rule) -> ChatServer:
    """A server whose verdicts are `rule(fields)`: values, or any answer of a `ChatServer`."""

    def behave(body: dict[str, Any], number: int) -> Any:
        said = rule(fields_of(body) | {"number": number})
        return answer(json.dumps({"reason": "by rule", **said})) if isinstance(said, dict) else said

    return ChatServer(behave)


def judge_of(server: ChatServer, **options: Any) -> Judge:
    """A judge that asks this server, with few and quick attempts."""
    chat = {"retries": options.pop("retries", 1), "timeout": options.pop("timeout", 5.0)}
    return Judge(ChatEndpoint(server.url, **chat), **options)


def asking(server: ChatServer, work: Callable[[Judge], Any], **options: Any) -> Any:
    """What `work(judge)` returns."""

    async def scenario() -> Any:
        judge = judge_of(server, **options)
        try:
            return await work(judge)
        finally:
            await judge.close()

    return asyncio.run(scenario())
