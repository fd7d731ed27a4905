"""What the Smurfs' system reads out of its agents' outputs, and what its work is worth."""

from __future__ import annotations

import pytest

from tests.recipe.test_smurfs import TASK
from verl_ext.mas import Task, Unparsable
from verl_ext.recipe.smurfs import grammar
from verl_ext.recipe.smurfs.scoring import read_final, scores
from verl_ext.rewards.calls import Invocation


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        ('{"Tasks": ["a", " b "]}', ["a", "b"]),
        ("Sure! {'Tasks': ['a', 'a']} Done.", ["a"]),
        ('```json\n{"Tasks": ["a"]}\n```', ["a"]),
        ('{"Tasks": ["a", "b"}', ["a", "b"]),
        ('{"Tasks": ["Task 1", "Task 2: find x", "2."]}', ["Task 2: find x"]),
        ('{"Tasks": ["\\ud800 a"]}', ["? a"]),  # no tokenizer takes half a surrogate pair
    ],
)
def test_plans(text, tasks):
    assert grammar.read_tasks(text, question="q") == tasks


@pytest.mark.parametrize(
    "text",
    [
        *("", "no", "[]", '{"Tasks": []}', '{"Tasks": [1]}', '{"Tasks": [" "]}', "{" * 1500),
        '{"Tasks": ["Task 1", "Task 2"]}',  # SmolLM2-135M's
    ],
)
def test_no_plan(text):
    with pytest.raises(Unparsable) as problem:
        grammar.read_tasks(text, question="q")
    assert problem.value.fallback == ["q"]


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ('{"Speak": "more", "Status": 0}', (False, "more")),
        ('{"Speak": "done", "Status": "1"}', (True, "done")),
        ('{"Status": 1}', (True, "")),
        ('{"Status": 1.0}', (True, "")),
        ('{"Status": 0.0}', (False, "")),
        ('{"Speak": "\\ud800 more \\ud83d\\ude00", "Status": 0}', (False, "? more 😀")),
        ("{'Speak': 'x', 'Status': 1}", (True, "x")),
    ],
)
def test_verdicts(text, verdict):
    assert grammar.read_verdict(text) == verdict


@pytest.mark.parametrize("text", ["yes", '{"Status": 2}', '{"Speak": "x"}', '{"Status": true, "Speak": 3}'])
def test_no_verdict_is_not_solved(text):
    with pytest.raises(Unparsable) as problem:
        grammar.read_verdict(text)
    assert problem.value.fallback == (False, "")


def test_nothing_is_evaluated():
    with pytest.raises(Unparsable):
        grammar.read_arguments('__import__("os").system("true")')
    assert grammar.read_object('{"a": "__import__(1)"}', grammar.ARGUMENTS) == ({"a": "__import__(1)"}, False)


@pytest.mark.parametrize(
    "text", ['{"a": NaN}', '{"a": 1e999}', '{"a": ' * 60 + "1" + "}" * 60, '{"a": ' * 5000 + "1" + "}" * 5000]
)
def test_arguments_that_no_json_can_hold(text):
    with pytest.raises(Unparsable) as problem:
        grammar.read_arguments(text)
    assert problem.value.fallback is None and len(str(problem.value)) < 300


@pytest.mark.parametrize(
    "text",
    [
        '{"movie_id": 59',  # it may have been 597
        '{"movie": {"id": 5}',
        'Sure: {"title": "Amber {x}',
        '{"title": "Amber}',
        '<think>perhaps {"movie_id": 59}, but',
    ],
)
def test_an_output_that_was_cut_off_is_no_call(text):
    with pytest.raises(Unparsable):
        grammar.read_arguments(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"movie_id": 59} as {this} says',
        '{"movie_id": 59} and then {',
        '<think>{x}</think>{"movie_id": 59}',
        '<think>{"movie_id": 1}</think>\n{"movie_id": 59}',
        '{"movie_id": 59}\n{"movie_id": 60}',
        'In "quotes: {"movie_id": 59}',
        'of {x}: {"movie_id": 59}',
    ],
)
def test_the_first_object_that_fits_is_read_whatever_stands_around_it(text):
    assert grammar.read_arguments(text) == {"movie_id": 59}


@pytest.mark.parametrize("text", ['{"ID": -1}', '{"ID": -9}', '{"ID": 2}', '{"ID": "-1"}', '{"ID": true}', "{}"])
def test_a_number_that_no_tool_has_is_no_choice(text):
    """Python counts negative places from the end: they must neither choose the last tool nor break the run."""
    assert grammar.read_choice('{"ID": 1}', names=["a", "b"]) == "b"
    with pytest.raises(Unparsable) as problem:
        grammar.read_choice(text, names=["a", "b"])
    assert problem.value.fallback == "a"


def test_an_object_that_does_not_fit_is_passed_over():
    assert grammar.read_verdict('{"title": "x"} {"Speak": "{more}", "Status": 0}') == (False, "{more}")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        *[
            ("a\nFINAL ANSWER: **b**\nc", "b"),
            ("a\nb", "b"),
            ("FINAL ANSWER:", ""),
            ("", ""),
            ("FINAL ANSWER: [x]", "[x]"),
        ],
        # SmolLM2-135M's, on GSM8K.
        ("3. 3 sprints x 180 meters = 540 meters\n\nThe answer is: 540.", "540."),
    ],
)
def test_final_answers(text, answer):
    assert read_final(text) == answer


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_only_thought_is_no_final_answer(whole):
    thought = "<think>So FINAL ANSWER: 5? No."
    assert read_final(f"{thought}</think>\n6", whole=whole) == "6"
    assert read_final(f"{thought}</think>\nFINAL ANSWER: 6", whole=whole) == "6"
    assert read_final(thought, whole=whole) == "", "it was cut off"


def test_scores_by_hand():
    film, person = (Invocation(name, {"q": "x"}) for name in ("film", "person"))
    called = [film, Invocation("person", {"q": "x"}, ok=False), person]
    found = scores(TASK, "Tova Brandt", called, ordered=True)
    path = {"path": 1.0, "path_share": 1.0, "correct_calls": 2.0, "unneeded_calls": 1.0}
    assert found == {"answer": 0.0, "f1": pytest.approx(2 / 3), **path}
    assert scores(TASK, "tova", called[:1], True)["path_share"] == 0.5
    with pytest.raises(ValueError, match="row 0 has neither an answer nor a gold path"):
        scores(Task("q", {}), "x", [], True)
