"""Compares what a replay asks with the record, and numbers calls whose identity is what they ask."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from verl_ext.mas.chat import ChatRequest
from verl_ext.mas.types import Call

REMEDY = (
    "A workflow must be deterministic given its calls: take randomness from ctx.rng, no clocks or global state; run "
    "concurrent parts under ctx.branch, and name what one of them uses of another in parents=."
)


def same(recorded: Any, now: Any) -> bool:
    """Whether a replay asks what was recorded. NaN is as NaN here, and arrays are compared by their values."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        return recorded.keys() == now.keys() and all(same(value, now[name]) for name, value in recorded.items())
    if isinstance(recorded, list | tuple) and type(recorded) is type(now):
        return len(recorded) == len(now) and all(map(same, recorded, now))
    if hasattr(recorded, "tolist") and hasattr(now, "tolist"):
        return same(recorded.tolist(), now.tolist())
    return recorded == now or (recorded != recorded and now != now)


def first_difference(recorded: Any, now: Any, remedy: str = REMEDY) -> str:
    """Describe the first difference of two prompts or argument sets."""
    old, new = _in_words(recorded), _in_words(now)
    at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    lo = max(0, at - 30)
    return f"recorded …{old[lo : at + 40]!r}, now …{new[lo : at + 40]!r} (first difference at character {at}). {remedy}"


def _in_words(prompt: Any) -> str:
    """Messages as `role: content` lines, anything else as it prints."""
    if isinstance(prompt, ChatRequest):
        return prompt.in_words()
    if isinstance(prompt, list) and all(isinstance(m, dict) and "content" in m for m in prompt):
        return "\n".join(f"{message.get('role')}: {message['content']}" for message in prompt)
    return str(prompt)


def number_places(calls: list[Call]) -> None:
    """Give calls whose identity is their content a turn: by depth in the call graph, then by what they ask.

    Calls shared with another trajectory keep theirs; the others get those that are free.
    """
    shared = {(call.agent, call.place) for call in calls if call.place is not None}
    turns: dict[str, Iterator[int]] = {}
    for call in sorted(calls, key=lambda call: (call.depth, str(call.messages), call.id)):
        if call.id.content and call.place is None:
            free = turns.setdefault(call.agent, itertools.count())
            call.place = next(turn for turn in free if (call.agent, turn) not in shared)
