"""Parsers of the two agents' outputs."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from verl_ext.mas import Unparsable


class Solution(NamedTuple):
    """A solver's output: the text, the number at its end ("" if none), and the number of solutions so far."""

    text: str
    answer: str
    number: int = 1


class Verdict(NamedTuple):
    """A verifier's output: the text, which a new solution may use, and whether it accepts."""

    text: str
    accepted: bool


def solution(text: str, /, **_: Any) -> Solution:
    """`12 9 17` -> the last number, "17".

    Raises:
        Unparsable: the text does not end with a number; falls back to a solution without an answer.
    """
    # Not by searching -?[0-9]+$, whose time is quadratic in digits that something follows.
    said = text.strip().removesuffix(".").removesuffix("\n")
    begin = len(said.rstrip("0123456789"))
    if begin == len(said):
        raise Unparsable("expected a number at the end", fallback=Solution(text.strip(), ""))
    return Solution(text.strip(), said[begin - said[:begin].endswith("-") :])


def verdict(text: str, /, **_: Any) -> Verdict:
    """`ok` or `right` accepts; `wrong`, or `wrong 2` with the first wrong step, rejects.

    Raises:
        Unparsable: anything else; falls back to accepting, which ends the system.
    """
    stripped = text.strip()
    if stripped in ("ok", "right"):
        return Verdict(stripped, True)
    if re.fullmatch(r"wrong( [0-9]+)?", stripped):
        return Verdict(stripped, False)
    raise Unparsable("expected `ok` or `wrong <step>`", fallback=Verdict("ok", True))
