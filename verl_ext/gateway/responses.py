"""Answers in the form of OpenAI's chat completions, whole and as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from verl_ext.gateway.asking import Reply
from verl_ext.gateway.requests import ChatRequest

# Characters of a piece of a streamed answer.
PIECE = 24


def completion(request: ChatRequest, reply: Reply, name: str, created: int) -> dict[str, Any]:
    """The body of a chat completion. name: of the answer; created: its second since 1970."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.content, "refusal": None}
    if reply.tool_calls:
        message |= {"content": reply.content or None, "tool_calls": reply.tool_calls}
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": reply.finish_reason,
        "logprobs": _logprobs(request, reply),
    }
    return {**_head(request, name, created, "chat.completion"), "choices": [choice], "usage": usage(reply)}


def chunks(request: ChatRequest, reply: Reply, name: str, created: int) -> Iterator[bytes]:
    """The same answer as server-sent events."""
    head = _head(request, name, created, "chat.completion.chunk")
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "" if reply.content else None}]
    deltas += [{"content": piece} for piece in pieces(reply.content)]
    deltas += [{"tool_calls": [{"index": i, **call}]} for i, call in enumerate(reply.tool_calls)]
    for delta in deltas:
        yield _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None, "logprobs": None}]})
    last = {"index": 0, "delta": {}, "finish_reason": reply.finish_reason, "logprobs": _logprobs(request, reply)}
    yield _event({**head, "choices": [last]})
    if request.usage:
        yield _event({**head, "choices": [], "usage": usage(reply)})
    yield b"data: [DONE]\n\n"


def pieces(text: str) -> Iterator[str]:
    """A text in pieces."""
    for start in range(0, len(text), PIECE):
        yield text[start : start + PIECE]


def usage(reply: Reply) -> dict[str, int]:
    """Tokens of the answer."""
    prompt, output = reply.prompt_tokens, reply.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def _head(request: ChatRequest, name: str, created: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{name}", "object": kind, "created": created, "model": request.agent}


def _logprobs(request: ChatRequest, reply: Reply) -> dict[str, Any] | None:
    if not request.logprobs:
        return None
    tokens = [
        {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []}
        for token, logprob in reply.logprobs or ()
    ]
    return {"content": tokens, "refusal": None}


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"
