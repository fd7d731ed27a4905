"""Which calls are the same call."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_ext.tools.catalogue.types import CallError
from verl_ext.tools.simulator import keys
from verl_ext.tools.simulator.keys import MAX_ARGUMENTS, call_key

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
NUMBER = (
    st.integers(-3, 3)
    | st.integers()
    | st.sampled_from([0.0, -0.0, 1.0, 2.0, 0.5, 1e16, 1e300])
    | st.floats(allow_nan=False, allow_infinity=False)
)
VALUE = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(TEXT, VALUE, max_size=4)


def same(one, other):
    """Equal as JSON: numbers by value, true is no number, texts code point by code point."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    return type(one) is type(other) and one == other


def digest(arguments, name="tool", version="v1"):
    return call_key(SimpleNamespace(name=name, version=version), arguments).digest


def shuffled(value, rng):
    """The same JSON, its objects in another order."""
    if isinstance(value, dict):
        items = [(key, shuffled(item, rng)) for key, item in value.items()]
        rng.shuffle(items)
        return dict(items)
    return [shuffled(item, rng) for item in value] if isinstance(value, list) else value


@given(ARGUMENTS, st.randoms())
def test_order_and_spelling_of_the_same_json_do_not_matter(arguments, rng):
    key = digest(arguments)
    assert digest(shuffled(arguments, rng)) == key
    for ascii_only in (True, False):
        assert digest(json.loads(json.dumps(arguments, ensure_ascii=ascii_only, indent=3))) == key


@given(VALUE, VALUE)
def test_two_calls_have_one_key_exactly_if_they_are_equal_as_json(one, other):
    assert (digest({"x": one}) == digest({"x": other})) == same(one, other)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, 1.0, True),
        (0, -0.0, True),
        (1, True, False),
        ("é", "e\u0301", False),  # looks the same, is sent differently
        ("😀", json.loads('"\\ud83d\\ude00"'), True),
        (1e16, 10**16, True),
        (2**53 + 1, float(2**53), False),
        ([1, 2], (1, 2), True),
    ],
)
def test_pairs_worth_knowing(one, other, equal):
    assert (digest({"x": one}) == digest({"x": other})) == equal


def test_the_tool_and_the_prompt_are_part_of_the_key(monkeypatch):
    plain = digest({"q": 1})
    assert digest({"q": 1}, version="v2") != plain
    assert digest({"q": 1}, name="renamed") == plain  # a name is part of the version
    monkeypatch.setattr(keys, "PROMPT_VERSION", 2)
    assert digest({"q": 1}) != plain


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"q": "x" * MAX_ARGUMENTS}, f"of tool have {MAX_ARGUMENTS + 8} characters, allowed are {MAX_ARGUMENTS}"),
        ({"q": "\ud800"}, "half of a character"),
        ({"\udfff": 1, "fine": "😀"}, "half of a character"),
        (json.loads("[" * 700 + "]" * 700), "nested more than 64 levels deep"),
        ({"q": json.loads("[" * 64 + "]" * 64)}, "nested more than 64 levels deep"),
        ({"q": 10**5000}, "of tool are not JSON"),
    ],
)
def test_arguments_that_no_api_would_take(arguments, words):
    with pytest.raises(CallError, match=words):
        digest(arguments)
    digest({"q": "x" * (MAX_ARGUMENTS - 8)})  # the longest
    digest({"q": json.loads("[" * 63 + "]" * 63)})  # the deepest
