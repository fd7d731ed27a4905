"""The rule-based search: the paper's rules by hand, and what holds in every world."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_ext.recipe.smurfs.search import Element, Search


def element(tool):
    return Element(tool, f"thought of {tool}", f"answer of {tool}")


def test_by_hand():
    """a goes on; below it b and a err, so a is popped at the root; b goes on, and below it a does."""
    search = Search("ab", max_calls=99, max_depth=3)
    assert search.open == ["a", "b"] and search.depth == 0
    search.go_on(element("a"))
    assert search.open == ["a", "b"] and search.path == ("a",)
    search.fail("b")
    assert search.open == ["a"]
    search.fail("a")
    assert (search.depth, search.open, search.rollbacks) == (0, ["b"], 1)
    assert search.local == [] and search.everything == [element("a")], "the global memory keeps what is popped"
    search.go_on(element("b"))
    search.go_on(element("a"))
    assert search.path == ("b", "a") and search.calls == 5


def test_a_path_of_the_most_planned_steps_ends_the_search():
    """Section 3.2: without a verdict within the maximum number of planned steps the search is over."""
    search = Search("ab", max_calls=99, max_depth=2, ends_deepest=True)
    search.go_on(element("a"))
    search.fail("b")
    assert search.open == ["a"], "errors are rolled back as ever"
    search.go_on(element("a"))
    assert (search.open, search.path, search.rollbacks) == ([], ("a", "a"), 0)
    assert Search("ab", 99, 0 + 1, ends_deepest=True).open == ["a", "b"]


def test_tools_that_are_not_open():
    search = Search("ab", max_calls=9, max_depth=5)
    search.fail("a")
    with pytest.raises(AssertionError, match="a is not open at depth 0"):
        search.fail("a")


def naive(tools, outcome, max_calls, max_depth):
    """The search as a recursion: visits (path, tool) in order; `outcome(path, tool)`: False errs, True goes on."""
    visits, seen = [], []

    def visit(path):
        for tool in tools:
            if len(visits) == max_calls:
                return
            visits.append((path, tool))
            if outcome(path, tool):
                seen.append(tool)
                if len(path) + 1 < max_depth:
                    visit((*path, tool))

    visit(())
    return visits, seen


@given(st.integers(0, 4), st.integers(0, 60), st.integers(1, 4), st.randoms(use_true_random=False))
def test_in_random_worlds(width, max_calls, max_depth, random):
    tools = [f"t{i}" for i in range(width)]
    world = {}

    def outcome(path, tool):
        return world.setdefault((path, tool), random.random() < 0.5)

    search, visits, path = Search(tools, max_calls, max_depth), [], []
    while search.open:
        tool = search.open[0]
        assert search.path == tuple(path)
        visits.append((search.path, tool))
        goes_on = outcome(search.path, tool)
        expected = (*search.path, tool)
        if goes_on:
            search.go_on(element(tool))
        else:
            search.fail(tool)
        path = list(search.path)
        # The memory is the path: the way on, or back along the way that led here.
        assert [e.tool for e in search.local] == path and tuple(path) == expected[: len(path)]
        assert search.depth <= max_depth
    assert len(set(visits)) == len(visits), "no (depth, path, tool) twice"
    assert len(visits) == search.calls <= min(max_calls, sum(width**d for d in range(1, max_depth + 1)))
    expected_visits, seen = naive(tools, outcome, max_calls, max_depth)
    assert visits == expected_visits
    assert [e.tool for e in search.everything] == seen


@given(st.integers(1, 4), st.integers(0, 40), st.randoms(use_true_random=False))
def test_it_ends_whatever_is_chosen(width, max_calls, random):
    search = Search([f"t{i}" for i in range(width)], max_calls, max_depth=50)
    steps = 0
    while search.open:
        tool = random.choice(search.open)
        search.go_on(element(tool)) if random.random() < 0.7 else search.fail(tool)
        steps += 1
    assert steps <= max_calls
