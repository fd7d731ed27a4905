"""Rendering of results: JSON where it can be, bounded and readable whatever it is, the same every time."""

import datetime
import decimal
import enum
import itertools
import json
import pathlib
import uuid
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from verl_ext.tools.catalogue import render
from verl_ext.tools.catalogue.render import MAX_DEPTH, plain


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    tags: set


class Model(BaseModel):
    when: datetime.date


class Text(str):
    def __str__(self):
        raise RuntimeError("hostile")


class Number(int):
    def __int__(self):
        raise RuntimeError("hostile")


class Dictionary(dict):
    def items(self):
        raise RuntimeError("hostile")


class Endless:
    def __iter__(self):
        return itertools.count()

    def __repr__(self):
        while True:
            pass


class Untouchable:
    @property
    def __class__(self):
        raise RuntimeError("do not look")


class Shouting(Exception):
    def __str__(self):
        raise RuntimeError("no message")


RESULTS = [
    ("plain text, ünï", "plain text, ünï"),
    ({"a": [1, 2.5, None, True, "é"]}, '{"a": [1, 2.5, null, true, "é"]}'),
    (None, "null"),
    ((1, (2,)), "[1, [2]]"),
    ({3, 1, *"xyzb", 2}, '["b", "x", "y", "z", 1, 2, 3]'),  # whatever their order in this process
    ([object(), iter([])], '["<object>", "<list_iterator>"]'),
    ({1: "a", "1": "b", None: "c", (1, 2): "d"}, '{"1": "a", "1\'": "b", "null": "c", "[1, 2]": "d"}'),
    (float("nan"), "NaN"),
    ([float("inf"), -float("inf")], '["Infinity", "-Infinity"]'),
    (b"bytes of text", "bytes of text"),
    (b"\x89PNG\r\n\x1a\n" + b"\x00" * 100, "<108 bytes: 89504e470d0a1a0a0000000000000000…>"),
    (bytearray(b"\xff"), "<1 bytes: ff>"),
    ("half \ud800 pair", "half ? pair"),
    ("a\r\nb\tc\x1b[31m\x00\x85", "a\nb\tc\\x1b[31m\\x00\\x85"),
    (10**5000, "<integer of 16,610 bits>"),
    (Colour.RED, "red"),
    (Point(1, {2}), '{"x": 1, "tags": [2]}'),
    (Model(when=datetime.date(2026, 11, 21)), '{"when": "2026-11-21"}'),
    ([datetime.date(2026, 1, 2), decimal.Decimal("1.10"), pathlib.Path("a/b")], '["2026-01-02", "1.10", "a/b"]'),
    (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (np.float32(0.5), "0.5"),
    (np.arange(4).reshape(2, 2), "[[0, 1], [2, 3]]"),
    (ValueError("no such city"), "ValueError: no such city"),
    ((i for i in range(3)), "<generator>"),
    (itertools.count(), "<count of itertools>"),
    (len, "<builtin_function_or_method>"),
    (Endless(), f"<Endless of {__name__}>"),
    (Point, "<type>"),
    (Text("t"), "t"),
    (Number(3), "3"),
    (Dictionary(a=1), '{"a": 1}'),
    (Untouchable(), "<unreadable: RuntimeError>"),
    (Shouting(), "<unreadable: RuntimeError>"),
]


@pytest.mark.parametrize("number", range(len(RESULTS)))
def test_results_of_every_kind(number):
    result, text = RESULTS[number]
    assert render(result, 1000) == text
    json.dumps(plain(result, 1000), allow_nan=False).encode()


def test_json_stays_a_value_and_long_results_become_a_text():
    value = {"a": [1, {"b": None}], "c": "ü" * 50}
    length = len(json.dumps(value, ensure_ascii=False))
    assert plain(value, length) == value and plain(value, length)["a"] is not value["a"]
    cut = plain(value, length - 1)
    assert isinstance(cut, str) and len(cut) == length - 1 and cut.endswith("… [cut: longer than 81 characters]")
    assert cut.startswith('{"a": [1, {"b": null}], "c": "üüü')
    assert plain("x" * 100, 100) == "x" * 100 and plain("x" * 101, 100) != "x" * 100
    assert plain((1, {2}), 10) == [1, [2]]


@pytest.mark.parametrize(
    "result",
    [
        "x" * 10_000_000,
        b"\x00" * 10_000_000,
        b"text " * 2_000_000,
        ["y"] * 5_000_000,
        {str(i): i for i in range(500_000)},
        set(range(500_000)),
        np.zeros((3000, 3000)),
        {"a": {"b": ["z" * 10_000_000, "never reached"]}},
    ],
    ids=["text", "bytes", "bytes of text", "list", "dict", "set", "array", "nested"],
)
def test_ten_megabytes_are_cut_without_being_copied(result):
    text = render(result, 500)
    assert len(text) <= 500 and (
        text.endswith("… [cut: longer than 500 characters]") or text.startswith("<10,000,000 bytes")
    )


def test_cycles_and_depth_come_to_an_end():
    cycle: list = [1]
    cycle += [cycle, cycle]
    assert f"<nested deeper than {MAX_DEPTH}>" in render(cycle, 10_000) and len(render(cycle, 10_000)) <= 10_000
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    assert render(deep, 10_000).endswith(f'"<nested deeper than {MAX_DEPTH}>"' + "]" * MAX_DEPTH)
    while deep:  # Python would recurse to free it
        deep = deep.pop()


def test_many_keys_of_one_name_take_no_longer_than_others():
    """Each gets one more mark than the one before it: the marks count as characters of the text, too.

    Without that, this takes longer than the time limit of a test.
    """
    assert len(render({object(): 0 for _ in range(40_000)}, 1_000_000)) == 1_000_000


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, None, "9"])
def test_limits_that_cannot_be(limit):
    with pytest.raises(ValueError, match="must be an integer >= 1"):
        render("x", limit)


ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=30)
    | st.binary(max_size=30)
    | st.dates()
    | st.builds(object),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(st.characters(), max_size=4) | st.integers(), inner, max_size=5)
        | st.tuples(inner, inner)
        | st.frozensets(st.text(max_size=3) | st.integers(), max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(ANY, st.integers(1, 300))
def test_rendering_never_raises_and_stays_within_the_limit(result, limit):
    text = render(result, limit)
    assert isinstance(text, str) and len(text) <= limit
    text.encode()  # no half of a surrogate pair
    assert not any(ord(c) < 32 and c not in "\n\t" for c in text)
    value = plain(result, limit)
    assert len(json.dumps(value, ensure_ascii=False, allow_nan=False)) <= limit or value == text
    assert render(result, limit) == text


SCALARS = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text("abé 1<")


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text("ab"), inner)))
def test_json_is_not_changed(value):
    assert plain(value, 10**6) == value
    if not isinstance(value, str):
        assert json.loads(render(value, 10**6)) == value
