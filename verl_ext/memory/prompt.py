"""Format memories for an agent's prompt, between its <memory> tags (Table 8, templates of Section A.6)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import accumulate

from verl_ext.memory.records import Memory
from verl_ext.tools.retrieval.types import encodable

MAX_CHARS = 4096
# The "<" of tags and of special tokens (<|im_end|>, </s>). Comparisons with numbers and GSM8K's <<48/2=24>> stay
# readable.
_TAG = re.compile(r"<(?!\s*[\d<=])")


def format_memories(memories: Sequence[Memory], max_chars: int = MAX_CHARS) -> str:
    """A JSON list of the memories in the order given, as in Table 8: ID, Query, Plan, Answer, Time, Score.

    Time is the training step. Texts that do not fit are cut and end in "…", the longest first; a memory that cannot be
    shown even so is left out. "<" that might be a tag's is written as JSON's \\u003c: a memory's text can neither close
    <memory> nor open another tag.

    Args:
        max_chars: of the result, brackets included.

    Raises:
        ValueError: max_chars is below 2, the length of an empty list.
    """
    if max_chars < 2:
        raise ValueError(f"max_chars must be at least 2 (an empty list), given {max_chars!r}.")
    shown: list[str] = []
    left = max_chars - 2
    for position, memory in enumerate(memories):
        comma = 2 if shown else 0
        entry = _fitting(memory, (left - comma * (len(memories) - position)) // (len(memories) - position))
        if entry:
            shown.append(entry)
            left -= len(entry) + comma
    return f"[{', '.join(shown)}]"


def _fitting(memory: Memory, room: int) -> str:
    """The memory in at most `room` characters, or "" if that is impossible."""
    limit = max(len(memory.query), len(memory.output), sum(map(len, memory.plan)), 1)
    while limit:
        entry = _entry(memory, limit)
        if len(entry) <= room:
            return entry
        limit = limit * 3 // 4
    return ""


def _entry(memory: Memory, limit: int) -> str:
    fields = {
        "ID": memory.id,
        "Query": _cut(memory.query, limit),
        "Plan": _cut_plan(memory.plan, limit),
        "Answer": _cut(memory.output, limit),
        "Time": memory.time,
        "Score": round(memory.score, 2),
    }
    return _TAG.sub(r"\\u003c", encodable(json.dumps(fields, ensure_ascii=False)))


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _cut_plan(plan: Sequence[str], limit: int) -> list[str]:
    """The leading names, with at most `limit` characters together."""
    for number, length in enumerate(accumulate(map(len, plan))):
        if length > limit:
            return [*plan[:number], "…"]
    return list(plan)
