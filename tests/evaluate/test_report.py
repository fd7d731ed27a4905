"""Numbers of the report by hand; titles; records and their folder."""

from __future__ import annotations

import itertools
import math
from contextlib import suppress
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import Script, chain, forest_of, run, speaker, walk
from verl_ext.evaluate.against import differences
from verl_ext.evaluate.answers import Answers, Outcome, outcome_of
from verl_ext.evaluate.keep import check_kept
from verl_ext.evaluate.recall import recall_scores
from verl_ext.evaluate.report import as_text, best_of, summarise, table_lines, write_report
from verl_ext.evaluate.runner import progress_line
from verl_ext.mas import CallFailed, Task, Trajectory, Unparsable
from verl_ext.mas.credit import assign_credit
from verl_ext.mas.types import CallId, Stream, ToolRecord
from verl_ext.observe.record import as_json
from verl_ext.observe.trajectories import evaluation_record, trace_question


def outcome(index, sample=0, source="s", status="ok", calls=(), **metrics):
    fields = ("agent", "status", "prompt_tokens", "generated_tokens", "seconds", "truncated", "executed", "score")
    calls = [dict(zip(fields, (*call, False, False, None)[: len(fields)], strict=True)) for call in calls]
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
    assert f1["best"] == {1: {"mean": 0.5, "questions": 3}, 2: {"mean": pytest.approx(2 / 3), "questions": 3}}


def test_differences_are_paired_by_question():
    """Differences 0.5, 0, 0.25 of the questions that both answered: their mean is 0.25, their error 0.25/√3."""
    own = [outcome(0, f1=1.0), outcome(1, f1=0.5), outcome(2, 0, f1=0.5), outcome(2, 1, f1=1.0), outcome(3, f1=1.0)]
    other = [outcome(0, f1=0.5), outcome(1, f1=0.5), outcome(2, f1=0.5), outcome(3, status="timeout"), outcome(4, f1=1)]
    mine, theirs = ({one.key: one for one in found} for found in (own, other))
    found = differences(mine, theirs)
    error = pytest.approx(0.25 / 3**0.5)
    assert found == {"s": {"f1": {"mean": 0.25, "standard_error": error, "questions": 3}}}
    data = {"data": {"s": results(own, 4, samples=2)}, "average": {}, "against": {"folder": "before", "data": found}}
    table = as_text(data)
    assert "| s    | 3         | +0.250 ± 0.144 |" in table and "Δ: difference to before" in table


def test_failures_count_as_0_by_question_and_the_best_of_k_is_over_questions_with_k_answers():
    """One answer of four is right and three time out; four of four are wrong: the mean of 1/4 and 0/4."""
    found = [outcome(0, f1=1.0), *[outcome(0, s, status="timeout") for s in (1, 2, 3)]]
    source = results([*found, *[outcome(1, s, f1=s / 4) for s in range(4)]], 2, samples=4)
    f1 = source["metrics"]["f1"]
    assert f1["mean"] == (1 + 0.375) / 2 and f1["failed_as_0"] == (0.25 + 0.375) / 2
    one, two, four = (f1["best"][k] for k in (1, 2, 4))
    assert one == {"mean": (1 + 0.375) / 2, "questions": 2} and four == {"mean": 0.75, "questions": 1}
    assert two == {"mean": pytest.approx((1 * 0.25 + 2 * 0.5 + 3 * 0.75) / 6), "questions": 1}
    said = as_text({"data": {"s": source}, "average": {}})
    assert "s: if they counted as 0: F1 0.312" in said
    assert "s F1: best@1 0.688, best@2 0.583 (1 of 2 questions), best@4 0.750 (1 of 2 questions)" in said


def test_numbers_that_are_none_are_left_out_and_told(tmp_path):
    found = [outcome(0, f1=1.0, steps=math.nan), outcome(1, f1=0.0, steps=2.0), outcome(2, f1=0.5, odd=math.inf)]
    summary = summarise([Task("q", data_source="s", index=i) for i in range(3)], 1, {one.key: one for one in found})
    source = summary["data"]["s"]
    assert source["metrics"]["steps"] == {"mean": 2.0, "standard_error": None, "questions": 1}
    assert "odd" not in source["metrics"] and source["not_finite"] == {"steps": 1, "odd": 1}
    said = write_report(tmp_path, summary)
    assert "s: 1 x Steps was no finite number and is not in the means" in said and "1 x Odd was no" in said
    with pytest.raises(ValueError, match="JSON"):
        write_report(tmp_path, {**summary, "settings": {"a": math.nan}})


def test_the_reward_has_a_column_where_no_other_has_its_numbers():
    def said(**metrics):
        found = [outcome(0, reward=1.0, **metrics), outcome(0, source="t", reward=0.0, **metrics)]
        tasks = [Task("q", data_source=source) for source in ("s", "t")]
        return as_text(summarise(tasks, 1, {one.key: one for one in found}))

    assert "| answered | Reward | calls |" in said()
    assert "| answered | Reward | EM    | calls |" in said(em=1.0)  # the same in one of the two data sets only
    source = results([outcome(0, reward=0.5, em=0.0, f1=0.5), outcome(1, status="timeout")], 2)
    text = as_text({"data": {"s": source, "empty": results([], 1)}, "average": {}})
    assert "Reward " not in text and "The reward equals F1, so it has no column." in text
    assert source["metrics"]["reward"]["mean"] == 0.5


def test_progress_shows_the_mean_of_those_that_have_the_headline():
    ended = [outcome(0, f1=1.0), outcome(1, em=1.0), outcome(2, f1=math.nan), outcome(3, status="timeout")]
    assert progress_line(ended, 5, 2.0, "f1") == "4/5  F1 1.000  2.0/s  0 min 00 s left  1 failed"
    assert progress_line([], 50, 2.0, "f1") == " 0/50"
    assert progress_line(ended, 4, 2.0, "f1") == "4/4  F1 1.000  2.0/s  1 failed", "nothing is left"


def test_a_headline_that_is_not_reported_comes_first_with_the_remedy():
    data = {"data": {"s": results([outcome(0, reward=1.0, em=0.0, f1=1.0)], 1)}, "average": {}}
    first = as_text(data | {"headline": "accuracy"}).splitlines()[0]
    assert first.endswith("headline is 'accuracy', but its reward reports em, f1. Remedy: headline = 'f1'")
    assert as_text(data | {"headline": "en"}).splitlines()[0].endswith("headline = 'em'")
    assert as_text(data | {"headline": "f1"}).startswith("| data")


def test_failed_trajectories_are_beside_the_means():
    found = [
        outcome(0, f1=1.0, calls=[("a", "ok", 10, 4, 1.0)]),
        outcome(1, status="engine_error", calls=[("a", "engine_error", 20, 0, 3.0)]),
    ]
    source = results(found, 3)
    assert source["metrics"]["f1"] == {"mean": 1.0, "standard_error": None, "questions": 1, "failed_as_0": 0.5}
    assert (source["answered"], source["missing"], source["failed"]) == (1, 1, {"engine_error": 1})
    assert source["per_trajectory"]["prompt_tokens"] == 15 and source["agents"]["a"]["seconds"] == 2.0
    said = as_text({"data": {"s": source}, "average": {}})
    assert "| s    | 1/3 " in said and "s: if they counted as 0: F1 0.500" in said
    assert "1 x engine_error; the first: 'why'" in said and "1 trajectories have not been asked for yet" in said


def test_what_became_of_each_agents_outputs():
    calls = [
        *[("a", "ok", 10, 4, 1.0, False, True, 1.0), ("a", "truncated", 10, 4, 1.0, True, True, 0.0)],
        *[("a", "unparsable", 10, 4, 1.0, True, False, 0.5), ("a", "timeout", 10, 0, 1.0, False, False, None)],
        ("b", "engine_error", 10, 0, 1.0, False, False, None),
    ]
    source = results([outcome(0, f1=1.0, calls=calls)], 1)
    a = source["agents"]["a"]
    assert (a["parsed"], a["truncated"], a["executed"], a["score"]) == (2, 2, 2, 0.5)
    rows = [[cell.strip() for cell in line.split("|")[2:-4]] for line in as_text({"data": {"s": source}}).splitlines()]
    assert ["agent", "calls", "parsed", "truncated", "executed", "score", "failed"] in rows
    assert ["a", "4", "2", "2", "2", "0.500", "1 timeout"] in rows
    assert ["b", "1", "0", "0", "0", "–", "1 engine_error"] in rows


def test_outputs_before_a_tool_call_count_as_executed_if_they_could_be_read():
    async def searching(task, ctx):
        await ctx.call("a")
        await ctx.tool("search", queries=["q"])
        await ctx.call("b")
        with suppress(CallFailed):
            await ctx.call("c")
        return await ctx.tool("search", queries=["q"])

    def unreadable(text, /, **_):
        raise Unparsable("no", "fallback")

    async def search(queries):
        return []

    agents = {"a": speaker("a"), "b": speaker("b"), "c": speaker("c").changed(parse=unreadable)}
    forest = forest_of(Script(searching, agents), tools={"search": search})
    forest.trajectories.append(run(walk(forest)))
    assign_credit(forest.trajectories)
    found = {call["agent"]: call for call in outcome_of(record_of(forest)).calls}
    assert [found[name]["executed"] for name in "abc"] == [True, False, False]
    assert [found[name]["truncated"] for name in "abc"] == [False] * 3
    assert {call["score"] for call in found.values()} == {forest.trajectories[0].reward}


def test_a_ratio_of_nothing_in_a_workflows_table_is_no_number():
    table = as_json({"plans": {"right": 0.5, "late": math.nan}, "calls": {"right": math.inf}})
    lines = table_lines(table)
    assert [line.split("|")[2:-1] for line in lines[2:]] == [[" 0.500 ", " –    "], [" inf   ", " –    "]]


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
        ([documents("R&amp;D", "Béta")], ("R&D", "B&eacute;ta"), 1.0, 1.0),  # HTML escapes
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


def record_of(forest, seconds=0.1):
    about = {"result": forest.trajectories[0].result, "recall": {}, "seconds": seconds, "finished": 0.0}
    return evaluation_record(trace_question(forest), None, about)


def test_a_record_survives_what_a_system_may_put_into_it(tmp_path):
    async def odd(task, ctx):
        ctx.note("weird", {1: float("nan"), "set": {1}})
        return {"answer": float("inf"), "bytes": b"x"}

    forest = forest_of(Script(odd))
    forest.trajectories.append(run(walk(forest)))
    records = Answers(tmp_path, {"a": 1})
    task = forest.task = Task("\ud800", {"target": ("x", float("nan"))}, "s", 3)
    records.add(record_of(forest, seconds=0.5))
    assert records.missing([task], 1) == []
    records.close()
    again = Answers(tmp_path, {"a": 1})
    assert again.missing([task], 2) == [(task, 1)] and again.outcomes[("s", 3, 0)].seconds == 0.5


@pytest.mark.parametrize("asked", ["out/questions.parquet", "link.parquet"])
def test_questions_that_are_asked_are_not_written_over_through_a_link(tmp_path, asked):
    """A link in the folder would be removed before its questions are read; one to a file there leads to that file."""
    (tmp_path / "out").mkdir()
    link, file = (tmp_path / name for name in ("out/questions.parquet", "link.parquet"))
    link, file = (link, file) if asked.startswith("out") else (file, link)
    file.write_bytes(b"")
    link.symlink_to(file)
    with pytest.raises(ValueError, match="would write over .*questions.parquet"):
        check_kept(tmp_path / "out", str(tmp_path / asked))


def test_settings_of_an_empty_folder_may_change(tmp_path):
    Answers(tmp_path, {"a": 1}).close()
    records = Answers(tmp_path, {"a": 2})
    forest = forest_of(chain)
    forest.trajectories.append(run(walk(forest)))
    records.add(record_of(forest))
    records.close()
    with pytest.raises(ValueError, match="  a: 2 there, 3 here"):
        Answers(tmp_path, {"a": 3})
