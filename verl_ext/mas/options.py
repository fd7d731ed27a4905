"""Checks of a workflow's options; errors name the option in the configuration."""

from __future__ import annotations

import math
from collections.abc import Collection


def one_of(name: str, value: object, allowed: Collection[str]) -> None:
    """Raises ValueError if `mas.workflow.<name>` is none of `allowed`."""
    if value not in allowed:
        raise ValueError(f"mas.workflow.{name}={value!r} is unknown; allowed: {', '.join(allowed)}")


def at_least(least: int, **options: float) -> None:
    """Raises ValueError if one of these options of `mas.workflow` is smaller, NaN or infinite."""
    for name, value in options.items():
        if not least <= value < math.inf:
            raise ValueError(f"mas.workflow.{name}={value} must be at least {least}, and finite")
