"""Numbers of the report by hand; titles; records and their folder."""

from __future__ import annotations

import itertools
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import Script, chain, forest_of, run, walk
from verl_ext.evaluate.recall import recall_scores
from verl_ext.evaluate.records import Outcome, Records, record_of
from verl_ext.evaluate.report import as_text, best_of, summarise
from verl_ext.mas import Task, Trajectory
from verl_ext.mas.types import CallId, Stream, ToolRecord


def outcome(index, sample=0, source="s", status="ok", calls=(), **metrics):
    calls = [
        dict(zip(("agent", "status", "prompt_tokens", "generated_tokens", "seconds"), c, strict=True)) for c in calls
    ]
    return Outcome((source, index, sample), status, "why" if status != "ok" else "", metrics, calls=calls)


def results(outcomes, questions, samples=1, source="s"):
    tasks = [Task(f"q{i}", data_source=source, index=i) for i in range(questions)]
    return summarise(tasks, samples, {one.key: one for one in outcomes})["data"][source]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.integers(1, 7))
def test_the_best_of_k_is_the_mean_maximum_over_all_choices(values, k):
    k = min(k, len(values))
    expected = fmean(max(chosen) for chosen in itertools.combinations(values, k))
    assert best_of(values, k) == pytest.approx(expected)


def test_the_best_of_k_is_pass_at_k_on_right_and_wrong():
    # 1 − C(10 − 3, 5) / C(10, 5) = 1 − 21/252
    assert best_of([1] * 3 + [0] * 7, 5) == pytest.approx(1 - 21 / 252)


def test_errors_are_over_questions_not_over_their_samples():
    # Question means 1, 0.5, 0: mean 0.5, standard deviation 0.5, error 0.5/√3.
    found = [outcome(q, s, f1=v) for q, values in enumerate([(1, 1), (1, 0), (0, 0)]) for s, v in enumerate(values)]
    f1 = results(found, 3, samples=2)["metrics"]["f1"]
    assert f1["mean"] == 0.5 and f1["standard_error"] == pytest.approx(0.5 / 3**0.5)
    assert f1["best"] == {1: 0.5, 2: pytest.approx(2 / 3)}


def test_failed_trajectories_are_beside_the_means():
    found = [
        outcome(0, f1=1.0, calls=[("a", "ok", 10, 4, 1.0)]),
        outcome(1, status="engine_error", calls=[("a", "engine_error", 20, 0, 3.0)]),
    ]
    source = results(found, 3)
    assert source["metrics"]["f1"] == {"mean": 1.0, "standard_error": None, "questions": 1}
    assert (source["answered"], source["missing"], source["failed"]) == (1, 1, {"engine_error": 1})
    assert source["per_trajectory"]["prompt_tokens"] == 15 and source["agents"]["a"]["seconds"] == 2.0
    said = as_text({"data": {"s": source}, "average": {}})
    assert "| s    | 1/3 " in said and "s: if they counted as 0: F1 0.500" in said
    assert "1 x engine_error; the first: 'why'" in said and "1 trajectories have not been asked for yet" in said


def test_nothing_answered_at_all():
    source = results([], 2)
    assert source["metrics"] == {} and source["per_trajectory"]["calls"] == 0
    assert "| s    | 0/2 " in as_text({"data": {"s": source}, "average": {}})


def test_the_average_leaves_out_what_one_of_them_lacks():
    tasks = [Task("q", data_source=source) for source in ("a", "b")]
    found = [outcome(0, source="a", f1=1.0, em=1.0), outcome(0, source="b", f1=0.5)]
    average = summarise(tasks, 1, {one.key: one for one in found})["average"]
    assert average == {"f1": {"mean": 0.75, "standard_error": None}}


def documents(*titles):
    return [{"pid": f"{i}{title}", "title": title} for i, title in enumerate(titles)]


def searched(*lists, gold=("Alpha", "Béta"), **notes):
    trajectory = Trajectory(Stream("0"), notes=notes)
    for turn, result in enumerate(lists):
        trajectory.tools.append(ToolRecord(CallId((), "tool:t", turn), Stream("0"), "t", {}, result=result))
    return recall_scores(Task("q", extra={"gold_titles": list(gold)}), trajectory)


@pytest.mark.parametrize(
    ("lists", "gold", "at5", "at10"),
    [
        ([documents("Alpha", "x", "y", "z", "w", "Béta")], ("Alpha", "Béta"), 0.5, 1.0),
        ([documents("  ALPHA ", "Be\u0301ta")], ("Alpha", "Béta"), 1.0, 1.0),  # case, blanks, Unicode form
        ([documents("Alpha", "Alpha"), documents("Béta")], ("Alpha", "Béta", "Alpha"), 1.0, 1.0),  # two searches
        ([documents("v"), documents("v", "w", "x", "y", "Alpha")], ("Alpha",), 1.0, 1.0),  # v came twice, counts once
        ([[]], ("Alpha",), 0.0, 0.0),
        ([documents("Alphabet")], ("Alpha",), 0.0, 0.0),
    ],
)
def test_recall_by_hand(lists, gold, at5, at10):
    assert searched(*lists, gold=gold) == {"recall@5": at5, "recall@10": at10}


def test_recall_where_there_is_nothing_to_recall():
    assert searched(documents("Alpha"), gold=()) == {}
    assert searched() == {} and searched("text", 5, None, [1, 2]) == {}  # tools that return no documents
    assert recall_scores(Task("q", extra={"gold_titles": None}), Trajectory(Stream("0"))) == {}


def test_recall_among_what_the_workflow_notes():
    notes = {"chosen": documents("Béta"), "words": 3}
    assert searched(documents("Alpha", "Béta"), **notes)["recall_chosen"] == 0.5
    assert searched(chosen=[])["recall_chosen"] == 0.0


def test_a_record_survives_what_a_system_may_put_into_it(tmp_path):
    async def odd(task, ctx):
        ctx.note("weird", {1: float("nan"), "set": {1}})
        return {"answer": float("inf"), "bytes": b"x"}

    trajectory = run(walk(forest_of(Script(odd))))
    records = Records(tmp_path, {"a": 1})
    task = Task("\ud800", {"target": ("x", float("nan"))}, "s", 3)
    records.add(record_of(task, 0, trajectory, {}, 0.5))
    assert records.missing([task], 1) == []
    records.close()
    again = Records(tmp_path, {"a": 1})
    assert again.missing([task], 2) == [(task, 1)] and again.outcomes[("s", 3, 0)].seconds == 0.5


def test_settings_of_an_empty_folder_may_change(tmp_path):
    Records(tmp_path, {"a": 1}).close()
    records = Records(tmp_path, {"a": 2})
    records.add(record_of(Task("q"), 0, run(walk(forest_of(chain))), {}, 0.1))
    records.close()
    with pytest.raises(ValueError, match="  a: 2 there, 3 here"):
        Records(tmp_path, {"a": 3})
