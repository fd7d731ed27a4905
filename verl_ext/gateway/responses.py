"""Answers in the form of OpenAI's chat completions, whole and as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from verl_ext.gateway.requests import ChatRequest
from verl_ext.mas.chat import Reply
from verl_ext.mas.openai_client import logprobs_of, usage_of

# Characters of a piece of a streamed answer.
PIECE = 24


@dataclass(frozen=True)
class Given:
    """An answer as a program is given it.

    Attributes:
        reply: what was sampled.
        content: its text, without the stop text with which it ends.
        stopped_by: that stop text; empty if there is none.
        name, created: the answer's id, and the second since 1970 in which it was first given; the same on replay.
    """

    reply: Reply
    content: str
    stopped_by: str
    name: str
    created: int


def completion(request: ChatRequest, given: Given) -> dict[str, Any]:
    """The body of a chat completion."""
    reply = given.reply
    message: dict[str, Any] = {"role": "assistant", "content": given.content, "refusal": None}
    if reply.tool_calls:
        message |= {"content": given.content or None, "tool_calls": reply.tool_calls}
    choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason}
    choice["logprobs"] = logprobs_of(reply) if request.logprobs else None
    return {**_head(request, given, "chat.completion"), "choices": [choice], "usage": usage_of(reply)}


def chunks(request: ChatRequest, given: Given) -> Iterator[bytes]:
    """The same answer as server-sent events."""
    head, reply = _head(request, given, "chat.completion.chunk"), given.reply
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None if reply.tool_calls else ""}]
    deltas += [{"content": piece} for piece in pieces(given.content)]
    deltas += [{"tool_calls": [{"index": i, **call}]} for i, call in enumerate(reply.tool_calls)]
    for delta in deltas:
        yield _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None, "logprobs": None}]})
    last = {
        "index": 0,
        "delta": {},
        "finish_reason": reply.finish_reason,
        "logprobs": logprobs_of(reply) if request.logprobs else None,
    }
    yield _event({**head, "choices": [last]})
    if request.usage:
        yield _event({**head, "choices": [], "usage": usage_of(reply)})
    yield b"data: [DONE]\n\n"


def pieces(text: str) -> Iterator[str]:
    """A text in pieces."""
    for start in range(0, len(text), PIECE):
        yield text[start : start + PIECE]


def _head(request: ChatRequest, given: Given, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{given.name}", "object": kind, "created": given.created, "model": request.agent}


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"  # ASCII: some clients end lines at U+2028
