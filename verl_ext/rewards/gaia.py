"""GAIA's quasi exact match: the target decides whether an answer is read as a number, a list or a text.

Source: scorer.py of the leaderboard, huggingface.co/spaces/gaia-benchmark/leaderboard.
"""

from __future__ import annotations

import math
import re
import string

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_UNITS = str.maketrans("", "", "$%,")
_SEPARATOR = re.compile("[,;]")


def gaia_match(answer: str, target: str) -> float:
    """1.0 if the answer is the target, else 0.0.

    A number: $, % and commas in the answer do not count, and values must be equal. A list (the target has a comma or
    semicolon): as many elements in the same order, each a number or a text with its punctuation. A text: blanks,
    punctuation and case do not count.
    """
    if number(target) is not None:
        return float(_same(answer, target))
    if not _SEPARATOR.search(target):
        return float(_letters(answer).translate(_PUNCTUATION) == _letters(target).translate(_PUNCTUATION))
    said, wanted = _SEPARATOR.split(answer), _SEPARATOR.split(target)
    return float(len(said) == len(wanted) and all(map(_same, said, wanted)))


def _same(said: str, wanted: str) -> bool:
    value = number(wanted)
    if value is None:
        return _letters(said) == _letters(wanted)
    return number(said.translate(_UNITS)) == value


def number(text: str) -> float | None:
    """The number that the whole text is; `nan` and `inf` are words, as they are no answers' values."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _letters(text: str) -> str:
    return "".join(text.split()).lower()
