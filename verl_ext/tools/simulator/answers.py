"""Turn a model's answer into a tool's result.

Only answers of the simulating model are repaired here, never text of a policy, so no reward depends on a repair.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from verl_ext.tools.catalogue.types import CallError
from verl_ext.tools.catalogue.written_calls import load_strictly
from verl_ext.tools.retrieval.types import encodable

# Longest result, in characters, and its deepest nesting.
MAX_RESULT, MAX_DEPTH = 256 * 1024, 64
# Longest text that is repaired: json_repair takes about 4 µs a character (1 ms for a usual result).
MAX_REPAIRED = 32 * 1024
# The end of reasoning that the server did not remove from the answer.
THOUGHT = "</think>"
FENCE = re.compile(r"```(?:[ \t]*(?:json|JSON))?[ \t\r]*\n")


class NoResult(Exception):
    """The model's answer is no result; the message gives the model the reason."""


def returned(result: Any, name: str) -> Any:
    """`result`, unless it says that the tool fails.

    Args:
        result: the model's answer, as JSON.
        name: of the tool, for the message.

    Raises:
        CallError: the real tool would fail. The prompt asks for `{"error": "its message"}` then; the message may also
            be an object or true, and other fields may stand beside it. An error that is a number, or is empty beside
            other fields, is part of a result.
    """
    error = result.get("error") if isinstance(result, dict) else None
    alone = isinstance(result, dict) and len(result) == 1
    if error is True or (isinstance(error, str | dict) and (error or alone)):
        said = error if alone and isinstance(error, str) else json.dumps(result, ensure_ascii=False)
        raise CallError(said or f"{name} failed")
    return result


class Result(NamedTuple):
    """A result as one line of JSON, and whether it was repaired."""

    text: str
    repaired: bool


def result_of(said: str, stop_reason: str = "completed") -> Result:
    """The JSON value in a model's answer.

    Reasoning before it and a Markdown fence around it are removed. Text that is almost JSON (an extra comma, single
    quotes) is repaired if it begins like an object or a list.

    Raises:
        NoResult: the text was cut off, is too long, or is no JSON.
    """
    if stop_reason == "length":
        raise NoResult("it was cut off; make it shorter")
    if len(said) > MAX_RESULT:
        raise NoResult(f"it has {len(said)} characters; make it shorter")
    text = _bare(said)
    if not text:
        raise NoResult("it is empty")
    try:
        return Result(_checked(_first(said, text)), False)
    except ValueError as error:
        if text[0] not in "{[" or len(text) > MAX_REPAIRED or _brackets_too_deep(text):
            raise NoResult(f"it is no JSON ({error!s:.100})") from error
    return Result(_repaired(text), True)


def _first(said: str, bare: str) -> Any:
    """The value of all that was said, or else of the part that is `bare`: a result may hold "</think>" itself."""
    try:
        return load_strictly(said)
    except ValueError:
        return load_strictly(bare)


def _bare(said: str) -> str:
    """The text after any reasoning; if it has exactly one fence, the text inside."""
    text = said.rpartition(THOUGHT)[2].strip()
    opening = FENCE.search(text)
    if opening is None or text.count("```") > 2 or text[0] in '{["':
        return text
    return text[opening.end() :].partition("```")[0].strip()


def _repaired(text: str) -> str:
    from json_repair import repair_json

    try:
        value = repair_json(text, return_objects=True, skip_json_loads=True)
        if not value:  # for `{` and the like
            raise ValueError("no value is left of it")
        return _checked(value)
    except (ValueError, RecursionError) as error:
        raise NoResult(f"it is no JSON ({error!s:.100})") from error


def _checked(value: Any) -> str:
    """`value` as one line of JSON; ValueError if it has infinite numbers, is nested too deeply or too long."""
    if too_deep(value):
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    text = encodable(json.dumps(value, ensure_ascii=False, allow_nan=False))
    if len(text) > MAX_RESULT:
        raise ValueError(f"it has {len(text)} characters")
    return text


def too_deep(value: Any) -> bool:
    """Whether a JSON value is nested more than MAX_DEPTH levels deep."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        items = [item for part in level for item in (part.values() if isinstance(part, dict) else part)]
        level = [item for item in items if isinstance(item, dict | list)]
    return bool(level)


def _brackets_too_deep(text: str) -> bool:
    """Whether a repair would take seconds, as it does for thousands of open brackets; those in texts count, too."""
    depth = 0
    for character in text:
        depth += (character in "{[") - (character in "}]")
        if depth > MAX_DEPTH:
            return True
    return False
