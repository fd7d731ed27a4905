"""R_A: whether the final answer is right, by kind of task (JoyAgents-R1, Section 4.3)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from verl_ext.memory import Similarity
from verl_ext.memory.similarity import inner
from verl_ext.rewards.numbers import readable

KINDS = ("math", "qa", "function")
# Cosine from which an answer counts as the right one (Section 4.3).
THRESHOLD = 0.6
# A minus behind a digit, a letter or a bracket subtracts; commas group three digits, or part two numbers.
NUMBER = re.compile(
    r"(?:(?<![\w)\]])-)?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])\.\d+)(?:[eE][-+]?\d{1,3}(?!\w))?"
)
# As models write a minus sign: U+2212, and the dashes U+2012 and U+2013.
MINUS = str.maketrans(dict.fromkeys("\u2212\u2012\u2013", "-"))
# The form in which a function-call agent passes on a result (Tables 8 and 9); the master must not change it.
PASSED = re.compile(r"Pass calling \{\s*[\"']api_name[\"']:\s*[\"']([^\"']+)[\"']")


def accuracy(truth: Mapping[str, Any], answer: str, similarity: Similarity) -> float:
    """1 for a right answer, else 0.

    math: its last number is the target's, digit grouping aside (behind "####", if that is there, as in GSM8K). qa: the
    cosine of its and a target's vector is at least 0.6. function: the functions that it reports as called are exactly
    those of `functions`; an answer without any is right if the list is empty. The caller checks that they were really
    called (`Work.claimed`).

    Args:
        truth: {"kind", "target": [texts]} or {"kind": "function", "functions": [names]}.

    Raises:
        ValueError: an unknown kind.
    """
    kind = truth.get("kind")
    if kind == "math":
        number = last_number(answer)
        return float(number is not None and any(number == last_number(target) for target in truth["target"]))
    if kind == "qa":
        return float(any(cosine(answer, target, similarity) >= THRESHOLD for target in truth["target"]))
    if kind == "function":
        return float(set(functions_called(answer)) == set(truth["functions"]))
    raise ValueError(f"ground_truth.kind={kind!r} is unknown; allowed: {', '.join(KINDS)}")


def functions_called(answer: str) -> list[str]:
    """Names of the functions that an answer reports as called, in order."""
    return PASSED.findall(answer)


def cosine(one: str, other: str, similarity: Similarity) -> float:
    """The cosine of two texts, in [-1, 1]; 0 if one of them is blank."""
    vectors = similarity.encode([one, other])
    return float(inner(vectors[:1], vectors[1])[0])


def last_number(text: str) -> Decimal | None:
    """The last number of a text, behind its last "####" if it has one."""
    numbers: Sequence[str] = NUMBER.findall(readable(text.rpartition("####")[2].translate(MINUS)))
    try:
        return Decimal(numbers[-1].replace(",", "")) if numbers else None
    except InvalidOperation:
        return None
