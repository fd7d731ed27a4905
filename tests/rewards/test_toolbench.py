"""The columns of Table 5 by hand, in both ways of counting, and what must hold of any steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_ext.rewards.toolbench import COLUMNS, Decision, Step, argument_f1, toolbench_scores

APIS = frozenset({"weather", "time"})
ANSWER, GIVE_UP = Decision("answer"), Decision("give_up")


def call(name, arguments=(), **more):
    return Decision("call", name, None if arguments is None else {**dict(arguments), **more})


def step(gold, predicted):
    return Step(gold, predicted, APIS)


PARIS = call("weather", city="Paris", days=3)
STEPS = [
    step(PARIS, call("weather", city="Paris", days=5)),  # one pair of two: F1 1/2; half a point for days: 3/4
    step(PARIS, call("weather", city="Paris", days=3)),  # 1
    step(PARIS, call("time")),  # another API
    step(PARIS, ANSWER),  # a wrong plan
    step(call("time"), call("time")),  # empty and empty: 1
    step(call("time"), call("time", zone="UTC")),  # 0
    step(call("time"), call("clock")),  # an API that does not exist
    step(ANSWER, ANSWER),
    step(ANSWER, call("weather", city="Rome")),
    step(GIVE_UP, ANSWER),
]


def test_the_papers_words():
    assert toolbench_scores(STEPS) == pytest.approx(
        {
            "Plan_ACC": 7 / 10,
            "Act_EM": 4 / 7,
            "Easy_F1": 1 / 3,
            "Hard_F1": (0.5 + 1 + 0 + 0) / 4,
            "F1": (0.5 + 1 + 1) / 7,
            "No_Hallu": 1 - 1 / 7,  # of seven called names
            "Avg": (7 / 10 + 4 / 7 + 1 / 3 + 1.5 / 4 + 2.5 / 7 + 6 / 7) / 6,
        }
    )


def test_the_published_script():
    """Three steps miss the name and count in Easy_F1 (2 of its own + 3) and in Hard_F1 (2 + 3)."""
    scores = toolbench_scores(STEPS, counting="script")
    expected = {"Easy_F1": 1 / 5, "Hard_F1": 1.75 / 5, "F1": 2.75 / 7, "No_Hallu": 1 - 1 / 10, "Act_EM": 4 / 7}
    assert {name: scores[name] for name in expected} == pytest.approx(expected)
    assert scores["F1"] > max(scores["Easy_F1"], scores["Hard_F1"])


def test_a_row_of_table_5_is_possible_under_the_script_only():
    """GPT-4o in domain: Act_EM 57.0, Easy_F1 31.1, Hard_F1 22.2, F1 37.3.

    Solved for its shares of the calls: 43 % miss the name, 19.4 % rightly have no arguments, 37.6 % have some, with a
    mean F1 of 0.477 (here: three of ten right, 0.46).
    """
    ten = {str(number): number for number in range(10)}
    steps = [step(call("time"), call("weather"))] * 430 + [step(call("time"), call("time"))] * 194
    steps += [
        step(call("weather", ten), call("weather", {str(number): number for number in range(10) if number < 3}))
    ] * 376
    scores = toolbench_scores(steps, "script")
    assert scores["Act_EM"] == pytest.approx(0.570) and scores["Easy_F1"] == pytest.approx(0.311, abs=5e-4)
    assert scores["Hard_F1"] == pytest.approx(0.222, abs=0.01) and scores["F1"] == pytest.approx(0.373, abs=0.01)


@pytest.mark.parametrize(
    "gold, predicted, score",
    [
        ({}, {}, 1),
        ({}, {"a": 1}, 0),
        ({"a": 1}, {}, 0),
        ({"a": 1}, None, 0),
        ({}, None, 0),
        ({"a": 1, "b": 2}, {"a": 1}, 2 / 3),  # precision 1, recall 1/2
        ({"a": 1}, {"a": 1, "b": 2, "c": 3}, 0.5),  # precision 1/3, recall 1
        ({"a": 1}, {"a": 1.0}, 1),
        ({"a": 1}, {"a": "1"}, 0),
        ({"a": 1}, {"a": True}, 0),
        ({"a": 0}, {"a": False}, 0),
        ({"a": None}, {}, 0),
        ({"a": {"x": [1, {"y": 2}], "z": "é"}}, {"a": {"z": "é", "x": [1.0, {"y": 2}]}}, 1),
        ({"a": [1, 2]}, {"a": [2, 1]}, 0),
        ({"a": "Paris"}, {"a": "paris"}, 0),
        ({"a": 1}, {"A": 1}, 0),
    ],
)
def test_argument_f1(gold, predicted, score):
    assert argument_f1(gold, predicted) == pytest.approx(score)


def test_a_right_name_with_another_value_may_count_half():
    assert argument_f1({"a": 1, "b": 2}, {"a": 1, "b": 3}, half=0.5) == 0.75
    assert argument_f1({"a": 1}, {"b": 1}, half=0.5) == 0


def test_columns_without_steps_are_absent_and_so_is_the_average():
    assert toolbench_scores([step(ANSWER, ANSWER)]) == {"Plan_ACC": 1.0, "No_Hallu": 1.0}
    only_hard = toolbench_scores([step(PARIS, PARIS)])
    assert only_hard == {"Plan_ACC": 1, "Act_EM": 1, "Hard_F1": 1, "F1": 1, "No_Hallu": 1}


def test_a_model_that_never_calls():
    """Qwen2.5-32B out of the domain: Act_EM and every F1 are 0, and No_Hallu is 100."""
    scores = toolbench_scores([step(PARIS, ANSWER), step(call("time"), GIVE_UP), step(ANSWER, ANSWER)])
    assert scores == pytest.approx(
        {"Plan_ACC": 1 / 3, "Act_EM": 0, "Easy_F1": 0, "Hard_F1": 0, "F1": 0, "No_Hallu": 1, "Avg": 4 / 18}
    )


@pytest.mark.parametrize("counting", ["text", "script"])
def test_a_model_that_says_nothing_scores_nothing(counting):
    silent = Decision("none")
    scores = toolbench_scores([step(PARIS, silent), step(call("time"), silent), step(ANSWER, silent)], counting)
    assert set(scores) == {*COLUMNS, "Avg"} and set(scores.values()) == {0}


ARGUMENTS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 2), max_size=3)
CALLS = st.builds(call, st.sampled_from(["weather", "time", "clock"]), st.none() | ARGUMENTS)
GOLD_CALLS = st.builds(call, st.sampled_from(["weather", "time"]), ARGUMENTS)
ENDS = st.sampled_from([ANSWER, GIVE_UP])
ANY_STEPS = st.lists(st.builds(step, GOLD_CALLS | ENDS, CALLS | ENDS), min_size=1, max_size=12)


@given(ANY_STEPS, st.sampled_from(["text", "script"]), st.randoms(use_true_random=False))
def test_scores_are_shares_and_the_order_does_not_matter(steps, counting, shuffler):
    scores = toolbench_scores(steps, counting)
    assert all(0 <= value <= 1 for value in scores.values()) and set(scores) <= {*COLUMNS, "Avg"}
    shuffler.shuffle(steps)
    assert toolbench_scores(steps, counting) == pytest.approx(scores)


@given(ANY_STEPS)
def test_in_the_papers_words_f1_lies_between_easy_and_hard_and_below_the_names(steps):
    scores = toolbench_scores(steps)
    if "F1" in scores:
        parts = [scores[name] for name in ("Easy_F1", "Hard_F1") if name in scores]
        assert min(parts) - 1e-12 <= scores["F1"] <= max(parts) + 1e-12
        assert scores["F1"] <= scores["Act_EM"] + 1e-12 and scores["Act_EM"] <= 1


@given(ANY_STEPS)
def test_right_predictions_score_one(steps):
    right = [Step(one.gold, one.gold, one.apis) for one in steps]
    for counting in ("text", "script"):
        assert set(toolbench_scores(right, counting).values()) == {1.0}


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match=r"needs steps and a counting out of \['text', 'script'\], given 'text'"):
        toolbench_scores([])
    with pytest.raises(ValueError, match="given 'table5'"):
        toolbench_scores(STEPS, "table5")
    with pytest.raises(ValueError, match="plan of a decision is one of .*given 'finish'"):
        Decision("finish")
    for name, plan in (("", "call"), ("time", "answer")):
        with pytest.raises(ValueError, match="if and only if it calls one"):
            Decision(plan, name)
    for gold in (call("clock"), call("time", None)):
        with pytest.raises(ValueError, match="leave such steps out"):
            step(gold, ANSWER)
