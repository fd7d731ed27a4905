"""The gold answers of a row of a data set."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any


def targets_of(truth: Any, row: str) -> list[str]:
    """`target` of `reward_model.ground_truth`: one gold answer or several, texts or numbers; [] if there is none.

    A text is one answer, not a list of its characters. 5.0 is the answer 5.

    Args:
        truth: the ground truth as stored.
        row: names the row in error messages.

    Raises:
        ValueError: the ground truth is no mapping, or an answer is neither a finite number nor a non-blank text.
    """
    if truth is not None and not isinstance(truth, Mapping):
        raise ValueError(f"ground_truth of {row} must be a mapping like {{target: [Paris]}}, but is {truth!r:.200}")
    given = None if truth is None else truth.get("target")
    if given is None:
        return []
    several = isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping)
    answers = list(given) if several else [given]
    for one in answers:
        if not _is_number(one) and not (isinstance(one, str) and one.strip()):
            raise ValueError(
                f"ground_truth.target of {row} must be a text, a number or a list of them, none of them blank, but is "
                f"{given!r:.200}. Remedy: correct or leave out the row"
            )
    return [str(int(one)) if _is_number(one) and one == int(one) else str(one) for one in answers]


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return isinstance(value, Integral) or math.isfinite(value)
