"""Bounds of a trajectory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds that keep every trajectory finite.

    Attributes:
        max_prompt_tokens: longer prompts fail as `prompt_too_long` instead of being cut silently; an endpoint, which
            keeps the token ids to itself, has its own limit.
        max_context_tokens: prompt and output of a call that does not train, and so needs no room in a row: its prompt
            may have what its `max_tokens` leave of them (a helper that reads a whole history). None: it has no more
            room than others.
        max_calls: agent calls of one trajectory, for systems with loops.
        max_sequence_tokens: of a sequence of calls that continue each other, outputs and observations together; None:
            as many as the engine takes. A call that would begin behind that fails as `prompt_too_long`.
        call_timeout, tool_timeout: seconds; None waits for ever. Pauses for a weight update do not count as a call's.
        tool_retries: further attempts after a tool's first failure.
    """

    max_prompt_tokens: int = 4096
    max_context_tokens: int | None = None
    max_sequence_tokens: int | None = None
    max_calls: int = 64
    call_timeout: float | None = 600.0
    tool_timeout: float | None = 60.0
    tool_retries: int = 2
    retry_wait: float = 0.5
