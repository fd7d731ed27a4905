"""Which answers a request quotes."""

from __future__ import annotations

import json

import pytest

from verl_ext.gateway.quoting import Answer, Asked, named_calls, quoted_calls, stands
from verl_ext.mas.types import Call, CallId, Stream


def answer(text, asked="a question", tools=(), parents=()):
    call = Call(CallId((), "a", 0, text[:5]), Stream("0"), [{"role": "user", "content": asked}])
    call.parents = tuple(parents)
    return Answer.of(call, text, [{"id": one} for one in tools])


def quotes(made, *messages):
    return bool(quoted_calls([made], Asked([{"role": "user", "content": "", **message} for message in messages])))


PLAN = (
    '1. Look for the river.\n2. Find its length.\n{"query": "longest river", "why": "unknown"}\nAnswer: The Blue Nile'
)


@pytest.mark.parametrize(
    "content",
    [
        f"The plan was:\n{PLAN}\nGo on.",
        "Do this: 2. Find its length.",
        "search for longest river now",
        "Is The Blue Nile right?",
    ],
)
def test_lines_and_texts_in_quotes_and_behind_colons_are_found(content):
    assert quotes(answer(PLAN), {"content": content})


@pytest.mark.parametrize("content", ["Find the river", "unknown", "a question", "2. Find its lengths"])
def test_short_parts_and_parts_of_words_are_not(content):
    assert not quotes(answer(PLAN), {"content": content})


def test_a_text_in_quotes_without_an_end_is_read_in_linear_time():
    """From each of its escaped quotes, the end was looked for anew: a model that repeats itself held up all others."""
    endless = 'He said "' + '\\"' * 1_000_000
    assert answer(f'"the second option"\n{endless}').parts == sorted(
        ["the second option", '"the second option"', endless]
    )


def test_what_stood_in_its_own_prompt_is_no_quotation():
    made = answer("As you asked:\nWhere is the source?\nIt is in Ethiopia.", asked="Where is the source?")
    assert not quotes(made, {"content": "Where is the source?"})
    assert quotes(made, {"content": "He says: It is in Ethiopia."})


def test_a_short_answer_is_found_as_a_message_of_its_own():
    assert quotes(answer("42"), {"role": "assistant", "content": " 42"}, {"content": "sure?"})
    assert not quotes(answer("42"), {"content": "I have 42 apples"})


@pytest.mark.parametrize(
    ("text", "asked", "content", "expected"),
    [
        (" Arvik", "who?", "Bellini or Arvik?", True),
        ("Arvik", "who?", "Arviks", False),
        ("yes", "yes or no?", "is it yes", False),
        (".", "who?", "He said.", False),
        ("a longer answer", "who?", "a longer answer", False),
    ],
)
def test_a_short_answer_may_be_named_inside_a_text(text, asked, content, expected):
    made = answer(text, asked)
    assert named_calls([made], Asked([{"role": "user", "content": content}])) == ([made.call] if expected else [])


def test_tool_calls_are_found_by_their_ids_and_arguments():
    assert quotes(answer("", tools=["id7"]), {"role": "tool", "tool_call_id": "id7", "content": "3"})
    assert not quotes(answer("", tools=["id7"]), {"role": "tool", "tool_call_id": "id8", "content": "3"})
    arguments = json.dumps({"text": 'the "Blue" Nile, é'})
    call = {"id": "x", "function": {"name": "f", "arguments": arguments}}
    assert quotes(answer('the "Blue" Nile, é'), {"role": "assistant", "tool_calls": [call]})


def test_an_answer_that_repeats_an_earlier_one_stands_for_it():
    first = answer("The Nile is the longest river.")
    second = answer("Yes:\nThe Nile is the longest river.", asked=first.whole, parents=[first.call])
    assert quoted_calls([first, second], Asked([{"role": "user", "content": second.whole}])) == [second.call]
    assert quoted_calls([first, second], Asked([{"role": "user", "content": first.whole}])) == [first.call]


def test_whole_words():
    assert stands("option 1", "option 12 or option 1.") and not stands("option 1", "option 12 or option 13")
    assert stands("(x)", "f(x)y")
