"""One chat as a call of the session."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from verl_ext.mas.context import Context
from verl_ext.mas.types import Call, CallFailed, CallId, Invocation


@dataclass
class Reply:
    """What the model answered. `tool_calls` are OpenAI's, with ids; `logprobs` are (token, log-probability)."""

    call: Call
    content: str
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    logprobs: list[tuple[str, float]] | None = None


async def chat(
    ctx: Context,
    agent: str,
    messages: list[dict[str, Any]],
    *,
    tools: list[dict[str, Any]] | None = None,
    tool_choice: Any = "auto",
    sampling: dict[str, Any] | None = None,
    id: CallId,
    parents: list[Call],
) -> Reply:
    """Let `agent` answer these messages.

    Raises:
        CallFailed: as `Context.call`.
    """
    base = ctx.agents[agent]
    asked = dict(sampling or {})
    most = base.sampling.get("max_tokens", ctx.session.forest.sampling.get("max_tokens"))
    if "max_tokens" in asked and most is not None:
        asked["max_tokens"] = min(asked["max_tokens"], most)
    role = base.changed(sampling=asked, prompt=lambda: messages)
    call = await ctx.session.call(Invocation(id, role, {}, list(ctx.frontier), parents))
    if not call.status.trainable:
        raise CallFailed(call.status, f"agent {call.agent!r}: {call.error}")
    reason = "length" if call.generation.stop_reason == "length" else "stop"
    return Reply(call, call.text, [], reason, call.prompt_tokens, call.generated_tokens)
