"""The benchmarks of decisions and of the search tree, in small: they run, and measure what they say."""

from __future__ import annotations

import re

from tests.bench import decisions, search_tree


def test_decisions_sample_what_the_lines_say():
    floor, differing, alike, scored = decisions.run(count=4, repeats=1)
    assert "1.00 x" in floor and "(1 sampled)" in differing
    # agent_000 to agent_099: the tokens of the first two digits, or one of the two together.
    assert re.search(r"among 100 that begin alike \([1-3] sampled\)", alike) and "each of 9 names" in scored


def test_the_search_tree_is_measured_on_finished_work():
    work, without, alone = search_tree.run(questions=2, repeats=1)
    assert "2 questions" in work and "of all" in without and "µs a tool call" in alone
    assert search_tree.bookkeeping(calls=50) > 0
