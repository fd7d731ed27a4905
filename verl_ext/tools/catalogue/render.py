"""Turn any result of a tool into JSON or text of bounded length, the same every time.

Results come from functions, servers and models: megabytes, bytes, generators, NaN, half a surrogate pair. JSON stays as
it is. Everything else is converted:

    texts          lone surrogates become "?", control characters visible (\\x1b), line breaks \\n
    bytes          their text if they are valid UTF-8, else "<1,234 bytes: 89504e47…>"
    NaN, infinity  "NaN", "Infinity", "-Infinity": JSON has no such numbers
    tuples, sets, dataclasses, pydantic models, enumerations, dates, paths, decimals, numpy's numbers and arrays
                   the corresponding JSON; sets in sorted order
    anything else  "<generator>", "<Image of PIL.Image>": the type only, because a `repr` may be arbitrary

No more is read than fits into the limit. Only the types named here are asked for their content, so an endless iterator
or an object whose attributes raise does no harm.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import math
import pathlib
import re
import uuid
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any

from verl_ext.tools.threads import by_user

MAX_DEPTH = 50
MAX_DIGITS = 1000  # of an integer; Python itself refuses to write more than 4,300
# The Unicode category Cc but for tabulators and line breaks.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Could be a special token of a model: <|im_end|>, </s>, <end_of_turn>, [INST]. Comparisons (a<b, 3 < 4) do not match.
_TOKEN = re.compile(r"<(?=[|｜]|/?[^\W\d][^<>\s]*>)|\[(?=/?[A-Z][A-Z_]*\])")
_AS_TEXT = (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID, pathlib.PurePath)


def render(result: Any, limit: int) -> str:
    """`result` as text of at most `limit` characters: a text as it is, anything else as one line of JSON.

    A longer text is cut and ends in a note. The module's docstring says how other types are converted.

    Raises:
        ValueError: limit < 1. No `result` raises.
    """
    value, complete = _converted(result, limit)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if complete and len(text) <= limit:
        return text
    note = f"… [cut: longer than {limit:,} characters]"
    return text[: limit - len(note)] + note if len(note) < limit else text[:limit]


def plain(result: Any, limit: int) -> Any:
    """`result` as JSON (dict, list, str, int, float, bool, None) if it takes at most `limit` characters, else as text.

    Raises:
        ValueError: limit < 1. No `result` raises.
    """
    value, complete = _converted(result, limit)
    if complete and len(json.dumps(value, ensure_ascii=False)) <= limit:
        return value
    return render(result, limit)


def _converted(result: Any, limit: int) -> tuple[Any, bool]:
    """(JSON of at least `limit` characters or of all of `result`, whether it is all)."""
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ValueError(f"the limit of a rendered result must be an integer >= 1 (characters), given {limit!r}")
    converter = _Converter(limit + 1)
    return converter.convert(result, 0), converter.complete


class _Converter:
    """Converts values to JSON until `left` characters are used. It never counts more characters than JSON takes."""

    def __init__(self, left: int):
        self.left, self.complete = left, True

    def convert(self, value: Any, depth: int) -> Any:
        if self.left <= 0:
            self.complete = False
            return None
        try:
            return self._convert(value, depth)
        except BaseException as error:  # raised by a property or a hook of an odd object
            if by_user(error):
                raise
            return self._text(f"<unreadable: {type(error).__name__}>")

    def _convert(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, bool):
            self.left -= 4
            return value
        if isinstance(value, enum.Enum):
            return self.convert(value.value, depth + 1)
        if isinstance(value, str):
            return self._text(str.__str__(value))
        if isinstance(value, bytes | bytearray | memoryview):
            return self._bytes(bytes(value))
        if isinstance(value, int | float):
            return self._number(value)
        if depth >= MAX_DEPTH:
            return self._text(f"<nested deeper than {MAX_DEPTH}>")
        if isinstance(value, dict):
            return self._object(dict.items(value), depth)
        if isinstance(value, list | tuple):
            return self._array(list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value), depth)
        return self._other(value, depth)

    def _other(self, value: Any, depth: int) -> Any:
        if isinstance(value, set | frozenset):
            if len(value) > self.left:  # sorting needs all of it
                self.complete = False
                return self._text(f"<set of {len(value):,} elements>")
            return sorted(self._array(iter(value), depth), key=lambda item: json.dumps(item, sort_keys=True))
        if isinstance(value, _AS_TEXT):
            return self._text(str(value))
        if isinstance(value, BaseException):
            return self._text(f"{type(value).__name__}: {value}")
        if is_dataclass(value) and not isinstance(value, type):
            return self._object(((field.name, getattr(value, field.name)) for field in fields(value)), depth)
        module = type(value).__module__.partition(".")[0]
        if module == "numpy" and hasattr(value, "tolist"):
            if value.size > self.left:
                self.complete = False
                return self._text(f"<array of shape {tuple(value.shape)}>")
            return self.convert(value.tolist(), depth + 1)
        if hasattr(type(value), "model_dump") and hasattr(type(value), "model_fields"):
            return self.convert(value.model_dump(mode="json"), depth + 1)
        name = type(value).__qualname__
        return self._text(f"<{name}>" if module == "builtins" else f"<{name} of {type(value).__module__}>")

    def _text(self, text: str) -> str:
        if len(text) > self.left:
            self.complete = False
            text = text[: self.left]
        self.left -= len(text)
        return clean(text)

    def _number(self, value: int | float) -> Any:
        if isinstance(value, float):
            self.left -= 3
            value = float.__float__(value)
            name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
            return value if math.isfinite(value) else name
        value = int.__int__(value)
        self.left -= value.bit_length() // 4
        return value if value.bit_length() < 3 * MAX_DIGITS else f"<integer of {value.bit_length():,} bits>"

    def _bytes(self, value: bytes) -> str:
        if len(value) <= 4 * self.left:
            try:
                text = value.decode("utf-8")
                if not _CONTROL.search(text.replace("\r\n", "\n")):
                    return self._text(text)
            except UnicodeDecodeError:
                pass
        return self._text(f"<{len(value):,} bytes: {value[:16].hex()}{'…' if len(value) > 16 else ''}>")

    def _array(self, items: Iterable[Any], depth: int) -> list[Any]:
        found = []
        for item in islice(items, self.left + 1):
            if self.left <= 0:
                self.complete = False
                break
            self.left -= 1
            found.append(self.convert(item, depth + 1))
        return found

    def _object(self, items: Iterable[tuple[Any, Any]], depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, item in items:
            if self.left <= 0:
                self.complete = False
                break
            self.left -= 2
            name = self.convert(key, depth + 1)
            name = name if isinstance(name, str) else json.dumps(name)
            while name in found:  # 1 and "1" are two keys in Python, and one in JSON
                name, self.left = f"{name}'", self.left - 1
            found[name] = self.convert(item, depth + 1)
        return found


def clean(text: str) -> str:
    """`text` with lone surrogates and control characters replaced, see the module's docstring."""
    text = text.encode("utf-8", "replace").decode("utf-8").replace("\r\n", "\n")
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def neutral(text: str) -> str:
    """`clean(text)` with everything escaped that a tokenizer could take for a special token: `&lt;|im_end|>`."""
    return _TOKEN.sub(lambda found: "&lt;" if found[0] == "<" else "&#91;", clean(text))
