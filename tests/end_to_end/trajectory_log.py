"""Checks of the records in a run's trajectory log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean, stdev
from typing import Any

import pytest


def check_tokens(calls: Iterable[dict[str, Any]]) -> None:
    """Every call has the pieces of its output, token by token."""
    for call in calls:
        assert call["tokens"] and "".join(call["tokens"]) == call["output"], call["id"]


def check_advantages(calls: Iterable[dict[str, Any]], groups: int) -> None:
    """Eq. 5 of MHGPO from the logged rewards gives the logged advantages, in `groups` groups of four."""
    members_of = defaultdict(list)
    for call in calls:
        if call["trained"]:
            members_of[call["step"], call["question"]["number"], call["group"]].append(call)
    assert len(members_of) == groups
    for members in members_of.values():
        rewards = [call["rewards"]["total"] for call in members]
        spread = stdev(rewards)
        for call in members:
            expected = (call["rewards"]["total"] - fmean(rewards)) / (spread + 1e-6) if spread else 0.0
            assert len(members) == 4 and call["advantage"] == pytest.approx(expected, abs=1e-4)
    assert any(call["advantage"] for members in members_of.values() for call in members)
