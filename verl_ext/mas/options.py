"""Checks of a workflow's options, whose errors name the option in the configuration, and of what it returns."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any


def one_of(name: str, value: object, allowed: Collection[str]) -> None:
    """Raises ValueError if `mas.workflow.<name>` is none of `allowed`."""
    if value not in allowed:
        raise ValueError(f"mas.workflow.{name}={value!r} is unknown; allowed: {', '.join(allowed)}")


def at_least(least: int, **options: float) -> None:
    """Raises ValueError if one of these options of `mas.workflow` is smaller, NaN or infinite."""
    for name, value in options.items():
        if not least <= value < math.inf:
            raise ValueError(f"mas.workflow.{name}={value} must be at least {least}, and finite")


def as_number(value: Any, what: str) -> float:
    """A number that the user's code returned. Raises TypeError if it is none, also for "1.0"."""
    if isinstance(value, str) or not hasattr(value, "__float__"):
        raise TypeError(f"{what} is {value!r:.200}, which is no number")
    return float(value)
