"""Anthropic's messages: requests as `ChatRequest`s, answers whole and as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from verl_ext.gateway.errors import ApiError
from verl_ext.gateway.requests import (
    CONFIGURED,
    FORMS,
    ChatRequest,
    agent_of,
    checked,
    given_in,
    refuse_content,
    text_of,
)
from verl_ext.gateway.responses import Given, pieces
from verl_ext.mas.json_texts import read_json

READ = ("model", "messages", "system", "tools", "tool_choice", "stop_sequences", "max_tokens", "stream", "metadata")
# Anthropic's kinds of `tool_choice` in OpenAI's words.
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def read_anthropic(body: Any, agents: Collection[str]) -> ChatRequest:
    """A body of /v1/messages.

    Raises:
        ApiError: 404 for a model that is no agent, 400 for everything else that cannot be served.
    """
    given = given_in(body, {**FORMS, "metadata": (dict, "an object")})
    messages = [{"role": "system", "content": text_of(given["system"], "system")}] if given.get("system") else []
    said = given.get("messages")
    if not isinstance(said, list) or not said:
        raise ApiError(400, "messages must be a list with at least one message", "invalid", "messages")
    for place, message in enumerate(said):
        messages += _messages(message, f"messages[{place}]")
    sampling = {"max_tokens": given.get("max_tokens"), "stop": given.get("stop_sequences") or None}
    ignored = [key for key in given if key not in (*READ, *CONFIGURED)]
    choice = given.get("tool_choice")
    if isinstance(choice, dict) and choice.get("disable_parallel_tool_use"):
        ignored.append("tool_choice.disable_parallel_tool_use")
    user = (given.get("metadata") or {}).get("user_id")
    return checked(
        ChatRequest(
            agent_of(given.get("model"), agents),
            messages,
            [_tool(tool) for tool in given.get("tools") or ()] or None,
            _choice(choice),
            {name: value for name, value in sampling.items() if value is not None},
            {} if user is None else {"user": user},
            stream=bool(given.get("stream", False)),
            ignored=tuple(ignored),
        )
    )


def _messages(message: Any, place: str) -> list[dict[str, Any]]:
    """A message of Anthropic as one or more of OpenAI: results of tools are messages of their own there."""
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ("user", "assistant"):
        raise ApiError(400, f"{place}: role={role!r} is unknown; allowed: user, assistant", "invalid", place)
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list):
        raise ApiError(400, f"{place}.content must be a text or a list of blocks", "invalid", place)
    texts, calls, results = [], [], []
    for number, block in enumerate(blocks):
        kind = block.get("type") if isinstance(block, dict) else type(block).__name__
        if kind == "text":
            texts.append(str(block.get("text", "")))
        elif kind == "tool_use" and role == "assistant":
            calls.append(_call(block))
        elif kind == "tool_result" and role == "user":
            text = text_of(block.get("content"), f"{place}.content[{number}].content")
            results.append({"role": "tool", "content": text, "tool_call_id": str(block.get("tool_use_id", ""))})
        elif kind not in ("thinking", "redacted_thinking"):
            refuse_content(kind, f"{place}.content[{number}]")
    own = {"role": role, "content": "\n".join(texts), **({"tool_calls": calls} if calls else {})}
    return [*results, *([own] if texts or calls or not results else [])]


def _call(block: dict[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
    function = {"name": str(block.get("name", "")), "arguments": arguments}
    return {"id": str(block.get("id", "")), "type": "function", "function": function}


def _tool(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str) or "input_schema" not in tool:
        raise ApiError(400, f"a tool needs name and input_schema, but is {tool!r:.200}", "invalid", "tools")
    function = {"name": tool["name"], "description": tool.get("description", ""), "parameters": tool["input_schema"]}
    return {"type": "function", "function": function}


def _choice(given: Any) -> Any:
    kind = "auto" if given is None else given.get("type") if isinstance(given, dict) else None
    if kind == "tool":
        return {"type": "function", "function": {"name": given.get("name")}}
    if not isinstance(kind, str) or kind not in CHOICES:
        raise ApiError(400, f"tool_choice={given!r}; allowed types: auto, any, none, tool", "invalid", "tool_choice")
    return CHOICES[kind]


def message(request: ChatRequest, given: Given) -> dict[str, Any]:
    """The body of an answer."""
    stop = given.stopped_by
    return {
        "id": f"msg_{given.name}",
        "type": "message",
        "role": "assistant",
        "model": request.agent,
        "content": _blocks(given),
        "stop_reason": "stop_sequence" if stop else REASONS[given.reply.finish_reason],
        "stop_sequence": stop or None,
        "usage": {"input_tokens": given.reply.prompt_tokens, "output_tokens": given.reply.completion_tokens},
    }


def _blocks(given: Given) -> list[dict[str, Any]]:
    texts = [{"type": "text", "text": given.content}] if given.content else []
    return texts + [
        {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": _input(call)}
        for call in given.reply.tool_calls
    ]


def _input(call: dict[str, Any]) -> Any:
    try:
        return read_json(call["function"]["arguments"])
    except (ValueError, RecursionError):
        return {"arguments": call["function"]["arguments"]}


def events(request: ChatRequest, given: Given) -> Iterator[bytes]:
    """The same answer as server-sent events."""
    whole = message(request, given)
    start = {**whole, "content": [], "stop_reason": None, "stop_sequence": None}
    start["usage"] = {**whole["usage"], "output_tokens": 0}
    yield _event("message_start", {"message": start})
    for index, block in enumerate(whole["content"]):
        empty: dict[str, Any]
        if block["type"] == "text":
            empty = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
        else:
            empty = {**block, "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"], ensure_ascii=False)}]
        yield _event("content_block_start", {"index": index, "content_block": empty})
        for delta in deltas:
            yield _event("content_block_delta", {"index": index, "delta": delta})
        yield _event("content_block_stop", {"index": index})
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}
    yield _event("message_delta", {"delta": end, "usage": {"output_tokens": whole["usage"]["output_tokens"]}})
    yield _event("message_stop", {})


def _event(kind: str, body: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **body})}\n\n".encode()  # in ASCII, as OpenAI's
