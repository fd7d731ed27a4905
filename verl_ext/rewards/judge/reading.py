"""The answers of a judge: one JSON object, whose values are words or numbers of given ranges."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_ext.tools.simulator.answers import NoResult, result_of


@dataclass(frozen=True)
class Allowed:
    """The values that an answer may have: `words`; or numbers from `low` to `high`, if there are no words."""

    words: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0

    @classmethod
    def of(cls, name: str, given: Sequence[Any]) -> Allowed:
        """What a template's list means.

        Raises:
            ValueError: it is neither two or more different words nor two rising numbers.
        """
        if len(set(map(str, given))) == len(given) >= 2 and all(isinstance(one, str) and one for one in given):
            return cls(tuple(given))
        numbers = len(given) == 2 and all(type(one) in (int, float) for one in given)
        if not numbers or not given[0] < given[1]:
            raise ValueError(f"must have two or more words or two rising numbers for {name!r}, given {list(given)!r}")
        return cls(low=float(given[0]), high=float(given[1]))

    def __str__(self) -> str:
        if self.words:
            return "one of " + ", ".join(f'"{word}"' for word in self.words)
        return f"a number from {self.low:g} to {self.high:g}"

    def read(self, value: Any) -> str | float | None:
        """The value in this range, or None."""
        if self.words:
            said = value.strip().lower() if isinstance(value, str) else value
            return next((word for word in self.words if word.lower() == said), None)
        return float(value) if type(value) in (int, float) and self.low <= value <= self.high else None


def read_answer(text: str, stop_reason: str, answers: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """{"reason", and the value of each of `answers`} of a judge's output.

    Raises:
        NoResult: it is cut off, no JSON object, or lacks a value; the message tells the judge why.
    """
    said = json.loads(result_of(text, stop_reason).text)
    if not isinstance(said, dict):
        raise NoResult("it is no JSON object")
    found: dict[str, Any] = {"reason": str(said.get("reason", ""))}
    for name, given in answers.items():
        allowed = Allowed.of(name, given)
        found[name] = allowed.read(said.get(name))
        if found[name] is None:
            raise NoResult(f'"{name}" must be {allowed}, and is {said.get(name)!r:.100}')
    return found
