"""JSON that programs, servers and models have written: read so that every later step can take it."""

from __future__ import annotations

import json
from typing import Any

# Levels of lists and objects within each other. What copies, compares and writes them takes a few frames for each.
DEEPEST = 100


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text, made valid.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested more than `DEEPEST` levels deep.
    """
    return valid(json.loads(text))


def valid(value: Any, left: int = DEEPEST) -> Any:
    """A JSON value whose texts can be encoded: half a surrogate pair, which JSON can hold, becomes U+FFFD.

    Raises:
        RecursionError: it is nested more than `left` levels deep.
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if not isinstance(value, list | dict):
        return value
    if left == 0:
        raise RecursionError(f"nested more than {DEEPEST} levels deep")
    if isinstance(value, list):
        return [valid(one, left - 1) for one in value]
    return {valid(name): valid(one, left - 1) for name, one in value.items()}
