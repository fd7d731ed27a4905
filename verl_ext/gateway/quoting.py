"""Which earlier answers a request uses: those that it quotes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_ext.mas.json_texts import DEEPEST
from verl_ext.mas.types import Call

# Characters from which on a part of an output is not found in a request by chance.
USEFUL = 8
# Parts of a line that programs take out of an output: texts in quotes, between tags, behind a colon. Quotes without an
# end are passed over as a whole.
PARTS = [
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r'"((?:[^"\\\n]|\\.)+)"|"(?:[^"\\\n]|\\.)+',
        r"`([^`\n]+)`",
        r"'([^'\n]+)'",
        r">([^<>\n]+)<",
        r":\s+(\S.*)$",
    )
]


class Asked:
    """The messages of a request, read once for all answers that it may quote.

    Attributes:
        text: all words, see `words`.
        said: what stands in them as the assistant's, without blanks around it.
        tool_ids: the tool calls that are in them, or answered.
    """

    def __init__(self, messages: Sequence[dict[str, Any]]):
        self.text = words(messages)
        self.said = {message["content"].strip() for message in messages if message["role"] == "assistant"}
        self.tool_ids = frozenset(_tool_ids(messages))


@dataclass(eq=False)
class Answer:
    """An answered call, with what of it a later request may quote. `tool_ids` are those of its tool calls.

    `short` is an output of under `USEFUL` characters, if it does not stand in its own prompt.
    """

    call: Call
    tool_ids: frozenset[str] = frozenset()
    whole: str = ""
    parts: list[str] = field(default_factory=list)
    short: str = ""

    @classmethod
    def of(cls, call: Call, content: str, tool_calls: Sequence[dict[str, Any]] = ()) -> Answer:
        """The answer of a call whose text the program saw as `content`."""
        asked, whole = words(call.messages), content.strip()
        found = {part for part in _parts(content) if not stands(part, asked)}
        ids = frozenset(str(tool.get("id")) for tool in tool_calls)
        short = len(whole) < USEFUL and any(map(str.isalnum, whole)) and not stands(whole, asked)
        return cls(call, ids, whole, sorted(found), whole if short else "")

    @classmethod
    def found(cls, call: Call, result: Any) -> Answer:
        """A tool's result as part of the answer of the call before it: who quotes the result uses that call."""
        return cls(call, parts=sorted({text.strip() for text in _strings(result) if len(text.strip()) >= USEFUL}))

    def quoted(self, asked: Asked) -> set[str]:
        """What a request quotes of it."""
        if self.tool_ids & asked.tool_ids:
            return {"tool call", *self.tool_ids}
        found = {part for part in self.parts if stands(part, asked.text)}
        if self.whole and (self.whole in asked.said or (len(self.whole) >= USEFUL and stands(self.whole, asked.text))):
            found.add(self.whole)
        return found


def stands(part: str, text: str) -> bool:
    """Whether a part stands in a text as whole words: "option 1" does not stand in "option 12"."""
    start = text.find(part)
    while start >= 0:
        end = start + len(part)
        cut = start > 0 and text[start - 1].isalnum() and part[0].isalnum()
        if not cut and not (end < len(text) and text[end].isalnum() and part[-1].isalnum()):
            return True
        start = text.find(part, start + 1)
    return False


def quoted_calls(answers: Iterable[Answer], asked: Asked) -> list[Call]:
    """The calls whose answers a request quotes.

    An answer that repeats an earlier one, which it depends on, stands for it.
    """
    found: dict[Call, set[str]] = {}
    for answer in answers:
        if quoted := answer.quoted(asked):
            found.setdefault(answer.call, set()).update(quoted)
    repeated = {
        parent
        for call, quoted in found.items()
        for parent in call.parents
        if parent in found and all(any(part in other for other in quoted) for part in found[parent])
    }
    return [call for call in found if call not in repeated]


def named_calls(answers: Iterable[Answer], asked: Asked) -> list[Call]:
    """The calls whose short outputs stand in a request: perhaps by chance."""
    return [answer.call for answer in answers if answer.short and stands(answer.short, asked.text)]


def words(messages: Iterable[dict[str, Any]]) -> str:
    """All texts of a chat, one below the other; arguments of tool calls as they stand and unescaped."""
    texts = []
    for message in messages:
        texts.append(str(message.get("content") or ""))
        for call in message.get("tool_calls") or ():
            arguments = (call.get("function") or {}).get("arguments") or ""
            texts += [arguments, *_values(arguments)] if isinstance(arguments, str) else [json.dumps(arguments)]
    return "\n".join(texts)


def _values(arguments: str) -> list[str]:
    try:
        read = json.loads(arguments)
    except (ValueError, RecursionError):
        return []
    return [value for value in read.values() if isinstance(value, str)] if isinstance(read, dict) else []


def _strings(value: Any, around: tuple[int, ...] = ()) -> Iterable[str]:
    """The texts in a value, which may have itself as a part; `around` identifies what it is in."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Iterable) and id(value) not in around and len(around) < DEEPEST:
        parts = value.values() if isinstance(value, Mapping) else value
        yield from (text for one in parts for text in _strings(one, (*around, id(value))))


def _tool_ids(messages: Iterable[dict[str, Any]]) -> Iterable[str]:
    for message in messages:
        if "tool_call_id" in message:
            yield message["tool_call_id"]
        for call in message.get("tool_calls") or ():
            yield str(call.get("id"))


def _parts(text: str) -> Iterable[str]:
    for line in text.splitlines():
        if len(line.strip()) >= USEFUL:
            yield line.strip()
    for pattern in PARTS:
        yield from (part.strip() for part in pattern.findall(text) if len(part.strip()) >= USEFUL)
