"""Scores by data set, and the vote: by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_ext.recipe.puppeteer.scoring import coverage, letter_of, majority, number_of, score


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42.0),
        ("The answer is 1,234.50 dollars.", 1234.5),
        ("$1,000", 1000.0),
        ("-$5", -5.0),
        ("−3", -3.0),
        ("from 3 to 7", 7.0),
        ("2e3", 2000.0),
        (".5", 0.5),
        ("none", None),
        ("", None),
        ("1e999999999", None),
        ("10-3", -3.0),
    ],
)
def test_numbers(text, number):
    assert number_of(text) == number


@pytest.mark.parametrize(
    ("source", "answer", "target", "expected"),
    [
        ("gsm8k", "42", "42", 1.0),
        ("gsm8k", "42.0", "42", 1.0),
        ("gsm8k", "42.1", "42", 0.0),
        ("gsm8k", "-42", "42", 0.0),
        ("gsm_hard", "0.333", "0.3333333", 1.0),
        ("gsm_hard", "0.33", "0.3333333", 0.0),
        ("gsm_hard", "1234567890123", "1234567890123.4", 0.0),
        ("gsm_hard", "12345", "12346", 0.0),
        ("gsm8k", "forty", "42", 0.0),
        ("gsm8k", "", "42", 0.0),
        ("mmlu_pro", "(C)", "C", 1.0),
        ("mmlu_pro", "C. Paris", "C", 1.0),
        ("mmlu_pro", "The answer is C", "C", 1.0),
        ("mmlu_pro", "c", "C", 1.0),
        ("mmlu_pro", "A cat", "A", 1.0),
        ("mmlu_pro", "A or B", "A", 0.0),
        ("mmlu_pro", "The answer is C. I am sure, and I'd bet. A good question.", "C", 1.0),
        ("mmlu_pro", "I think that it is I", "I", 1.0),
        ("mmlu_pro", "Paris", "C", 0.0),
        ("tiny_pool", "The Odd!", "odd", 1.0),
        ("tiny_pool", "13", "3", 0.0),
    ],
)
def test_scores(source, answer, target, expected):
    assert score(source, answer, {"target": [target]}) == expected


def test_coverage_by_stems():
    text = "The dogs were running across a field with frisbees."
    assert coverage(text, ["dog", "run", "field", "cat"]) == 0.75
    assert coverage(text, ["ice cream"]) == 0.0 and coverage("creamy ices", ["ice cream"]) == 0.0
    assert coverage("ice creams", ["ice cream"]) == 1.0 and coverage("", ["dog"]) == 0.0
    assert score("commongen_hard", text, {"target": ["dog", "cat"]}) == 0.5


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("gsm8k", ["forty-two"], "must be a number"),
        ("mmlu_pro", ["c"], "must be a letter from A to J"),
        ("mmlu_pro", ["Paris"], "must be a letter from A to J"),
        ("commongen_hard", ["犬"], "must be a word in Latin letters"),
        ("other", [None], "must be a text, a number"),
    ],
)
def test_targets_that_no_answer_meets(source, target, message):
    with pytest.raises(ValueError, match=message):
        score(source, "42", {"target": target})


def test_one_target_is_a_text_and_not_its_characters():
    assert score("gsm8k", "42", {"target": "42"}) == 1.0 and score("gsm8k", "4", {"target": "42"}) == 0.0
    assert score("other", "Tova", {"target": "Tova"}) == 1.0


def test_a_row_without_a_target():
    for truth in (None, {}, {"target": []}):
        with pytest.raises(ValueError, match="a row of 'gsm8k' has no target"):
            score("gsm8k", "1", truth)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["1", "2", "2.0"], "2"), (["1", "2"], "1"), (["", "", "2"], "2"), (["", ""], ""), (["none", ""], "none"),
        (["3", "1,000", "1000", "3"], "3"), (["3", "0", "-0"], "0"),
    ],
)  # fmt: skip
def test_votes(answers, expected):
    assert majority("gsm8k", answers) == expected


def test_votes_of_letters_and_words():
    assert majority("mmlu_pro", ["A", "(b)", "The answer is B"]) == "(b)"
    assert majority("tiny_pool", ["Odd", "even", "odd."]) == "Odd"


@given(st.text(max_size=40))
def test_no_text_breaks_a_score(text):
    for source, target in (("gsm8k", "7"), ("mmlu_pro", "C"), ("commongen_hard", "dog"), ("tiny_pool", "7")):
        assert 0.0 <= score(source, text, {"target": [target]}) <= 1.0
        assert majority(source, [text, text]) == text or not text
    assert letter_of(text) in "ABCDEFGHIJ"
