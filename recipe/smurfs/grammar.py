"""Reads the JSON that the agents write, by schema. Nothing in it is evaluated.

planner    {"Tasks": ["…", "…"]}
tool check {"Reason": "…", "Choice": "Yes" | "No"}
action     {"ID": 1, "Reason": "…"}                a tool's number, where `tool_choice` is id
arguments  {"…": …}                                any object; the tool checks its schema
verifier   {"Speak": "hint or answer", "Status": 0 | 1}

An output that is an example of the prompt is refused: small models copy them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import json_repair
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from verl_ext.mas import Unparsable
from verl_ext.tools.catalogue.types import as_json

# Brackets within brackets; of more than that, whatever walks them later would have to beware.
MAX_DEPTH = 50
# Longest text that is repaired, in characters: hostile ones take json_repair quadratic time.
MAX_REPAIRED = 4096
# Braces, and the texts in quotes, whose braces do not count. A text that is not closed reaches to the end.
_MARKS = re.compile(r'"(?:[^"\\]|\\.?)*(?:"|\Z)|[{}]', re.S)

# A sub-task that a small model has counted instead of written: "Task 1".
_NUMBER = re.compile(r"(?:sub-?)?tasks?\W*\d*\W*|\W*\d+\W*", re.IGNORECASE)

# Checked once: a schema that is given to `jsonschema.validate` is itself checked each time, at ten times the cost.
TASKS = Draft202012Validator(
    {
        "type": "object",
        "properties": {"Tasks": {"type": "array", "items": {"type": "string", "pattern": r"\S"}, "minItems": 1}},
        "required": ["Tasks"],
    }
)
CHECK = Draft202012Validator(
    {
        "type": "object",
        "properties": {"Reason": {"type": "string"}, "Choice": {"enum": ["Yes", "No", "YES", "NO", "yes", "no"]}},
        "required": ["Choice"],
    }
)
CHOICE = Draft202012Validator(
    {
        "type": "object",
        "properties": {
            "ID": {"type": ["integer", "string"], "minimum": 0, "pattern": "^[0-9]{1,4}$"},
            "Reason": {"type": "string"},
        },
        "required": ["ID"],
    }
)
ARGUMENTS = Draft202012Validator({"type": "object"})
VERDICT = Draft202012Validator(
    {
        "type": "object",
        "properties": {"Speak": {"type": "string"}, "Status": {"enum": [0, 1, "0", "1"]}},
        "required": ["Status"],
    }
)


def read_object(text: str, schema: Draft202012Validator) -> tuple[dict[str, Any], bool]:
    """The first JSON object in an output that fits, and whether it had to be searched for or repaired.

    The reasoning in <think> is not searched. Faults within an object (quotes, commas) are repaired, but an object that
    is not closed is none: the output was cut off, and so may be its last value.

    Raises:
        Unparsable: there is none, or none fits the schema.
    """
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return _first_fitting(text, schema), True
    return _checked(whole, schema), False


def _first_fitting(text: str, schema: Draft202012Validator) -> dict[str, Any]:
    _, end, said = text.rpartition("</think>")
    if not end and text.lstrip().startswith("<think>"):
        raise Unparsable("the reasoning has no end")
    problem = Unparsable("there is no JSON object")
    for read in (json.loads, json_repair.loads):
        if read is json_repair.loads and len(said) > MAX_REPAIRED:
            raise Unparsable(f"there is no JSON, and the output is too long to be repaired ({len(said)} characters)")
        for piece in _objects(said):
            try:
                return _checked(read(piece), schema)
            except (ValueError, RecursionError) as error:
                problem = Unparsable(f"this is no JSON: {error!s:.200}")
            except Unparsable as error:
                problem = error
    raise problem


def _objects(text: str) -> Iterator[str]:
    """Whatever stands in braces, the outermost ones. Raises Unparsable at an opening one that nothing closes."""
    start = text.find("{")
    while start >= 0:
        depth, end = 0, start
        for mark in _MARKS.finditer(text, start):
            depth, end = depth + {"{": 1, "}": -1}.get(mark[0], 0), mark.end()
            if depth == 0:
                break
        if depth:
            raise Unparsable("the JSON object is not closed; the output may have been cut off")
        yield text[start:end]
        start = text.find("{", end)


def _checked(value: Any, schema: Draft202012Validator) -> dict[str, Any]:
    """The value as JSON can hold it, if it fits. Raises Unparsable."""
    try:
        problem = best_match(schema.iter_errors(value))
        as_json(value)  # NaN equals nothing, not even itself on replay
        # JSON can spell lone surrogates, but no tokenizer takes them: "?".
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise Unparsable(f"this is no JSON: {error!s:.200}") from error
    if problem is not None:
        raise Unparsable(f"{problem.json_path}: {problem.message:.200}")
    if _deeper(value, MAX_DEPTH):
        raise Unparsable(f"the JSON is nested deeper than {MAX_DEPTH}")
    return value


def _deeper(value: Any, depth: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth < 0 or any(_deeper(item, depth - 1) for item in inner)


def _read(text: str, schema: Draft202012Validator, fallback: Any, examples: Sequence[Any] = ()) -> dict[str, Any]:
    try:
        found = read_object(text, schema)[0]
        if found in examples:
            raise Unparsable(f"this is the prompt's example: {json.dumps(found, ensure_ascii=False):.200}")
    except Unparsable as problem:
        raise Unparsable(str(problem), fallback=fallback) from problem
    return found


def read_tasks(text: str, /, *, question: str, examples: Sequence[Any] = (), **_: Any) -> list[str]:
    """The sub-tasks, stripped, without repetitions and mere numbers; the question alone if an output has none."""
    tasks = dict.fromkeys(task.strip() for task in _read(text, TASKS, [question], examples)["Tasks"])
    said = [task for task in tasks if not _NUMBER.fullmatch(task)]
    if not said:
        raise Unparsable(f"the sub-tasks say nothing: {list(tasks)!r:.200}", fallback=[question])
    return said


def read_check(text: str, /, *, examples: Sequence[Any] = (), **_: Any) -> bool:
    """Whether the sub-task needs a tool; it does if an output cannot be read."""
    return str(_read(text, CHECK, True, examples)["Choice"]).lower() == "yes"


def read_choice(text: str, /, *, names: Sequence[str], **_: Any) -> str:
    """The tool of that number; the first one if an output has none, or one out of range."""
    number = int(_read(text, CHOICE, names[0])["ID"])
    if number >= len(names):
        raise Unparsable(f"the ID must be from 0 to {len(names) - 1}, given {number}", fallback=names[0])
    return names[number]


def read_arguments(text: str, /, *, examples: Sequence[Any] = (), **_: Any) -> dict[str, Any] | None:
    """A tool's arguments; None if they cannot be read: the tool is not called, and counts as a failed call."""
    return _read(text, ARGUMENTS, None, examples)


def read_verdict(text: str, /, *, examples: Sequence[Any] = (), **_: Any) -> tuple[bool, str]:
    """(solved, hint); not solved, without a hint, if there is no verdict to be read."""
    said = _read(text, VERDICT, (False, ""), examples)
    return int(said["Status"]) == 1, str(said.get("Speak") or "").strip()


def well_formed(schema: Draft202012Validator) -> Any:
    """A penalty that costs nothing and counts how often an output's JSON had to be repaired."""

    def penalty(text: str, value: Any, parsable: bool, /, **_: Any) -> tuple[float, dict[str, float]]:
        repaired = parsable and read_object(text, schema)[1]
        return 0.0, {"repaired": float(repaired)}

    return penalty
