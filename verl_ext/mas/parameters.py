"""Sampling parameters that an agent, or a chat, has of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

# The temperature is common to all calls (see `Agent.sampling`).
PARAMETERS = ("top_p", "top_k", "max_tokens", "stop")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _texts(value: Any) -> bool:
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    return listed and all(isinstance(text, str) and text for text in value)


ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "top_p": (lambda value: (_whole(value) or isinstance(value, float)) and 0 < value <= 1, "a number within (0, 1]"),
    "top_k": (lambda value: _whole(value) and (value == -1 or value >= 1), "a whole number above 0, or -1 for all"),
    "max_tokens": (lambda value: _whole(value) and value >= 1, "a whole number above 0"),
    "stop": (_texts, "a text, or a list of texts, none of them empty"),
}


def checked(whose: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that are not None; `stop` as a list of texts.

    Raises:
        ValueError: another parameter, or a value that it cannot have; it names `whose` and what is allowed.
    """
    options = {name: value for name, value in given.items() if value is not None}
    if unknown := [name for name in options if name not in PARAMETERS]:
        raise ValueError(f"{whose} has {', '.join(unknown)}; allowed: {', '.join(PARAMETERS)}")
    if isinstance(options.get("stop"), str):
        options["stop"] = [options["stop"]]
    for name, value in options.items():
        allows, allowed = ALLOWED[name]
        if not allows(value):
            raise ValueError(f"{whose}: {name}={given[name]!r:.200}; allowed: {allowed}")
    if "stop" in options:
        options["stop"] = list(options["stop"])
    return options
