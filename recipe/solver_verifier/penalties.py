"""Agent-specific rewards of the solver and the verifier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def unparsable_penalty(value: float) -> Callable[..., tuple[float, dict[str, float]]]:
    """R_spe = `value` for output that breaks the format, else 0.

    Raises:
        ValueError: `value` is above 0.
    """
    if value > 0:
        raise ValueError(f"mas.workflow.unparsable={value} must be <= 0: it is a penalty")

    def penalty(text: str, result: Any, parsable: bool, /, **_: Any) -> tuple[float, dict[str, float]]:
        return (0.0 if parsable else value), {"accepted": float(result.accepted)} if hasattr(result, "accepted") else {}

    return penalty
