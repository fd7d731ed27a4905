"""The benchmark of policy heads, in small: it runs, and says what it measured."""

from __future__ import annotations

import re

from tests.bench import heads


def test_decisions_and_a_step_are_measured():
    lines = heads.run(pools=(3, 50), decisions=4)
    assert [re.sub(r"[\d.]+ ms", "T ms", line) for line in lines[1:3]] == [
        "       3 options: T ms to learn from a step's 4 decisions",
        "      50 options: T ms a decision, the first T ms; the product alone T ms",
    ]
