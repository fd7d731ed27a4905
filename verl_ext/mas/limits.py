"""Limits: bounds of a trajectory, and of the time in which nothing happens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds that keep every trajectory finite.

    Attributes:
        max_prompt_tokens: longer prompts fail as `prompt_too_long`; they are never cut. It does not apply to an
            endpoint, whose token ids are unknown and which has a limit of its own.
        max_context_tokens: prompt and output together of a call that does not train (a helper that reads a whole
            history): its prompt may have this number minus its `max_tokens`. None: `max_prompt_tokens` applies.
        max_calls: agent calls of one trajectory, for systems with loops.
        max_sequence_tokens: outputs and observations together of calls that continue each other; None: as many as
            the engine takes. A call that would begin beyond it fails as `prompt_too_long`.
        call_timeout, tool_timeout: seconds; None waits for ever. Pauses for a weight update do not count; the time
            that a call spends in the engine's queue does. The time in which a tool waits for its turn (a server that
            is busy, a place in the sandbox) does not count.
        trajectory_timeout: seconds of a trajectory, from its start to its result; None: no limit. Pauses do not count.
        tool_retries: further attempts after a tool's first failure.
        warn_after, stop_after: seconds without any progress after which a training run says what it waits for, and
            after which it ends; None: never.
    """

    max_prompt_tokens: int = 4096
    max_context_tokens: int | None = None
    max_sequence_tokens: int | None = None
    max_calls: int = 64
    call_timeout: float | None = 600.0
    tool_timeout: float | None = 60.0
    trajectory_timeout: float | None = 3600.0
    tool_retries: int = 2
    retry_wait: float = 0.5
    warn_after: float | None = 30.0
    stop_after: float | None = 1800.0
