"""Rules without a judge: GAIA's match, and what calls cost that a task does not need."""

from __future__ import annotations

import json

import pytest

from verl_ext.rewards.calls import Invocation
from verl_ext.rewards.correctness import charged, correct_calls, path_share, unneeded_calls
from verl_ext.rewards.gaia import gaia_match
from verl_ext.rewards.mathematics import math_match


# Worked out by hand from the leaderboard's scorer.py.
@pytest.mark.parametrize(
    ("answer", "target", "right"),
    [
        ("$1,234.50", "1234.5", 1),
        ("17 %", "17", 1),
        ("17 apples", "17", 0),
        ("about", "0", 0),
        ("Sea Gull!", "seagull", 1),
        ("the seagull", "seagull", 0),
        ("a, b; 3", "a,B,3.0", 1),
        ("b, a, 3", "a, b, 3", 0),
        ("a, b", "a, b, 3", 0),
        ("a., b", "a, b", 0),  # in lists, punctuation counts
        ("NaN", "nan", 1),
        ("", "17", 0),
    ],
)
def test_gaia_reads_an_answer_as_its_target(answer, target, right):
    assert gaia_match(answer, target) == right


@pytest.mark.parametrize(
    ("answer", "target", "right"),
    [
        ("-5", "5", 0),  # SQuAD's normalisation calls these two and the next two the same
        ("1.5", "15", 0),
        ("0.5", "\\frac{1}{2}", 1),
        ("$1,024$", "1024", 1),
        ("\\dfrac{1}{2}", "\\frac{1}{2}", 1),
        ("-\\frac{1}{2}", "\\frac{1}{2}", 0),
        ("x^2 + 1", "x^2+1", 1),
        ("x^2-1", "x^2+1", 0),
        ("", "0", 0),
        ("12", "1,2", 0),  # a comma that sets off no thousands is one between numbers
        ("1, 2", "1,2", 1),
        ("1,234,567", "1234567", 1),
        ("1000,2000", "10002000", 0),
    ],
)
def test_mathematical_answers_keep_their_sign_and_their_point(answer, target, right):
    assert math_match(answer, target) == right


GOLD = [Invocation("a", None), Invocation("b", {"x": 1})]
A, B, C = Invocation("a", {"y": 2}), Invocation("b", {"x": 1}), Invocation("c")


def test_a_call_whose_arguments_are_nested_deeply_is_scored():
    """A reward that raises stops the training."""
    deep = Invocation("b", json.loads('{"x": ' + "[" * 800 + "]" * 800 + "}"))
    assert correct_calls("arguments", [deep, B], GOLD) == correct_calls("executed", [deep], GOLD) == 1


def test_a_gold_call_without_arguments_takes_none_that_another_one_needs():
    one, two = Invocation("a", {"x": 1}), Invocation("a", {"x": 2})
    for gold in ([Invocation("a", None), one], [one, Invocation("a", None)]):
        for calls in ([one, two], [two, one]):
            assert unneeded_calls(calls, gold) == 0
            assert correct_calls("arguments", calls, gold) == 2
            assert path_share(calls, gold, ordered=False) == 1


@pytest.mark.parametrize(
    ("calls", "unneeded", "reward"),
    [
        ([A, B], 0, 1.0),
        ([B, A], 0, 1.0),
        ([A, C, B], 1, 0.9),
        ([A, A, B], 1, 0.9),
        ([A, B, Invocation("a", ok=False)], 1, 0.9),
        ([A, B] + [C] * 20, 20, 0.0),
    ],
)
def test_a_call_that_was_not_needed_costs(calls, unneeded, reward):
    assert unneeded_calls(calls, GOLD) == unneeded
    assert charged(1.0, calls, GOLD, 0.1) == pytest.approx(reward)
    assert charged(1.0, calls, GOLD, 0.0) == 1.0 and charged(0.0, calls, GOLD, 0.1) == 0.0
