"""Tool calls as agents write them: {"name": "opal_reef", "arguments": {"film": "Amber Harbor"}}."""

from __future__ import annotations

import json
import math
from typing import Any


def load_strictly(text: str) -> Any:
    """The value of a JSON text. Raises ValueError if it is none, has NaN or infinities, or is nested too deeply."""
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def read_call(text: str, empty_is_none: bool = False) -> tuple[str, dict[str, Any]]:
    """(name, arguments) of a call; without arguments {}.

    Args:
        empty_is_none: take null, "", [] and the like for no arguments.

    Raises:
        ValueError: it cannot be read; the message says why, in words for the agent.
    """
    try:
        call = load_strictly(text)
    except ValueError as error:
        raise ValueError(f"the call is no JSON: {error!s:.200}") from error
    if not is_call(call):
        raise ValueError('a call is {"name": "…", "arguments": {…}}')
    arguments = call.get("arguments", {})
    if empty_is_none and not arguments:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ValueError(f"arguments must be an object, not {type(arguments).__name__}")
    return call["name"], arguments


def is_call(value: Any) -> bool:
    """Whether a JSON value names a tool."""
    return isinstance(value, dict) and isinstance(value.get("name"), str)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is out of range")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
