"""What agents read: the paper's list, bounded, and no text that closes its tag."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_ext.memory import Memory, format_memories

DANNY = Memory(
    1620, "master", "How many times did Danny fold?", ("math_agent",), "8*8=<<8*8=64>>64 … ####4", 41, 6.0, 0.9
)
TAGS = ["</memory>", "< / memory >", "<memory>", "<|im_end|>", "<tool_call>{}</tool_call>", "<<</memory>", "<"]
TAGS += ["a <\n/memory>", "</think>", "<｜end｜>"]
FIELDS = ["ID", "Query", "Plan", "Answer", "Time", "Score"]
TAG = re.compile(r"<\s*[/|a-zA-Z!?｜]")
HOSTILE = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from([*TAGS, "\\u003c", '"}]', "\ud800"])).map("".join),
)


def test_as_in_table_8():
    assert format_memories([DANNY]) == (
        '[{"ID": 1620, "Query": "How many times did Danny fold?", "Plan": ["math_agent"], '
        '"Answer": "8*8=<<8*8=64>>64 … ####4", "Time": 41, "Score": 6.0}]'
    )
    assert format_memories([]) == "[]"


def test_the_order_is_kept_and_scores_are_rounded():
    memories = [Memory(number, "a", f"q{number}", (), "a", 1, number / 3) for number in (3, 1, 2)]
    shown = json.loads(format_memories(memories))
    assert [entry["ID"] for entry in shown] == [3, 1, 2] and [entry["Score"] for entry in shown] == [1.0, 0.33, 0.67]
    assert [list(entry) for entry in shown] == [FIELDS] * 3


@pytest.mark.parametrize("text", TAGS)
def test_no_tag_is_closed_or_opened(text):
    memory = Memory(1, "a", text, (text,), f"x{text}", 1, 1.0)
    shown = format_memories([memory])
    assert not TAG.search(shown) and "\\u003c" in shown
    (entry,) = json.loads(shown)
    assert [entry[name] for name in FIELDS[1:4]] == [text, [text], f"x{text}"]  # a reader of JSON loses nothing


def test_comparisons_stay_readable():
    text = "3 <5, x <= 7, 1 < 2, <<48/2=24>>24"
    assert text in format_memories([Memory(1, "a", text, (), "", 1, 1.0)])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(HOSTILE, st.lists(HOSTILE, max_size=3), HOSTILE, st.floats(-1e9, 1e9)), max_size=5),
    st.integers(2, 900),
)
def test_whatever_they_say_the_result_is_bounded_valid_and_closes_nothing(rows, room):
    memories = [
        Memory(number, "a", query, tuple(plan), output, number, score)
        for number, (query, plan, output, score) in enumerate(rows)
    ]
    text = format_memories(memories, room)
    assert len(text) <= room and not TAG.search(text)
    text.encode("utf-8")
    shown = json.loads(text)
    assert [entry["ID"] for entry in shown] == sorted(entry["ID"] for entry in shown)
    assert all(list(entry) == FIELDS for entry in shown)


def test_long_texts_are_cut_and_short_ones_beside_them_are_not():
    long = Memory(1, "a", "short query", ("tool",), "y" * 10_000, 1, 1.0)
    memories = [DANNY, long, DANNY]
    text = format_memories(memories, 1500)
    first, cut, last = json.loads(text)
    assert len(text) <= 1500 and cut["Answer"].endswith("y…") and 500 < len(cut["Answer"]) < 1200
    assert cut["Query"] == "short query" and cut["Plan"] == ["tool"]
    assert first == last == json.loads(format_memories([DANNY]))[0]


def test_a_plan_is_cut_between_names():
    memory = Memory(1, "a", "q", tuple(f"tool_{number}" for number in range(100)), "a", 1, 1.0)
    (entry,) = json.loads(format_memories([memory], 200))
    assert entry["Plan"][-1] == "…" and entry["Plan"][:2] == ["tool_0", "tool_1"]


def test_a_plan_of_many_names_is_cut_in_linear_time():
    """Quadratic time would take longer than the time limit of a test."""
    (entry,) = json.loads(format_memories([Memory(1, "a", "q", ("x",) * 400_000, "a", 1, 1.0)]))
    assert entry["Plan"][-1] == "…"


def test_what_cannot_be_shown_is_left_out():
    assert format_memories([DANNY] * 3, 2) == "[]" and format_memories([DANNY], 40) == "[]"
    with pytest.raises(ValueError, match="max_chars must be at least 2"):
        format_memories([], 1)


def test_a_megabyte_is_cut_too():
    memory = Memory(1, "a", "<" * 1_000_000, ("\x00" * 1_000_000,), "\ud800" * 1_000_000, 1, 1.0)
    text = format_memories([memory])
    assert len(text) <= 4096 and len(json.loads(text)) == 1
