"""Paths of decisions, their graphs, and what is logged of them: by hand."""

from __future__ import annotations

import json
import math

import pytest

from tests.helpers import FakeLLM, Script, forest_of, run, speaker, walk
from verl_ext.mas import Agent
from verl_ext.mas.credit import assign_credit
from verl_ext.mas.types import Call, CallId, Generation, Status, Stream
from verl_ext.observe.collaboration import paths_in
from verl_ext.observe.decisions import (
    Decision,
    Path,
    as_paths,
    deciding,
    decision_metrics,
    decision_of,
    folded,
    paths_of,
    structure,
)
from verl_ext.observe.metrics import METRICS, reduce_stats
from verl_ext.observe.question_stats import question_stats
from verl_ext.observe.record import by_step
from verl_ext.observe.trajectories import resolve, trace_question, training_record


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a", {"density": 0.0, "cycles": 0}),
        ("ab", {"density": 1 / 4, "cycles": 0}),
        ("aba", {"density": 2 / 4, "cycles": 1, "cycle_length": 2}),
        ("aab", {"density": 2 / 4, "cycles": 1, "cycle_length": 1}),  # a loop is a cycle
        ("abcab", {"density": 3 / 9, "cycles": 1, "cycle_length": 3}),
        ("abaca", {"density": 4 / 9, "cycles": 2, "cycle_length": 2}),
        ("abcba", {"density": 4 / 9, "cycles": 2, "cycle_length": 2}),
    ],
)
def test_structure_by_hand(path, expected):
    assert structure(folded(path)) == pytest.approx(expected)


def test_a_long_walk_among_many_agents_does_not_take_for_ever():
    """Every agent after every other: 12 of them have over 10⁸ cycles."""
    agents = "abcdefghijkl"
    walked = structure(folded([one for first in agents for second in agents for one in (first, second)]))
    assert walked["density"] == 1.0 and walked["cycles"] == 1000


def test_how_often_an_edge_was_taken():
    graph = folded("ababa")
    assert graph["a"]["b"]["weight"] == 2 == graph["b"]["a"]["weight"]


def test_metrics_by_hand():
    paths = [
        Path("boss", ("a", "b"), 1.0, 4.0),
        Path("boss", ("a", "b"), 0.5),
        Path("boss", ("a", "a", "b"), 0.0),
        Path("boss", ("b",), None, 1.0),
        Path("other", ("x",), 0.25),
    ]
    found = decision_metrics(paths)
    assert found == pytest.approx(
        {
            "decisions/boss/entropy": 0.5,
            "decisions/boss/options": 2.5,
            "decisions/boss/length": 2.0,
            "decisions/boss/top_path": 0.5,
            "decisions/boss/paths": 0.75,
            "decisions/boss/density": (1 / 4 + 1 / 4 + 2 / 4 + 0) / 4,
            "decisions/boss/cycles": 0.25,
            "decisions/boss/cycle_length": 1.0,
            "choices/boss/a": 0.5,
            "choices/boss/b": 0.5,
            "decisions/other/entropy": 0.25,
            "decisions/other/length": 1.0,
            "decisions/other/top_path": 1.0,
            "decisions/other/paths": 1.0,
            "decisions/other/density": 0.0,
            "decisions/other/cycles": 0.0,
            "choices/other/x": 1.0,
        }
    )
    assert decision_metrics([]) == {}


def test_from_a_workflow():
    """Two branches decide by themselves; a decision without a choice counts as a step, not for the entropy."""
    agents = {
        "boss": Agent(lambda names: [{"role": "user", "content": "who?"}], choices=lambda names: names),
        "worker": speaker("worker"),
    }

    class First(FakeLLM):
        async def generate(self, prompt_ids, sampling, key):
            if "allowed_token_ids" in sampling:
                return Generation([sampling["allowed_token_ids"][0]], [math.log(0.5)])
            return await super().generate(prompt_ids, sampling, key)

    async def explore(ctx, names):
        await ctx.call("boss", names=names)
        await ctx.call("worker")
        await ctx.call("boss", names=["z"])

    async def system(task, ctx):
        await ctx.branch("l", explore, ["b", "c"])
        await ctx.branch("r", explore, ["d", "e"])

    async def scenario():
        forest = forest_of(Script(system, agents), First())
        forest.sampling = {"temperature": 1.0, "max_tokens": 9}
        forest.trajectories.append(await walk(forest))
        assign_credit(forest.trajectories)
        return forest

    forest = run(scenario())
    expected = [Path("boss", (name, "z"), pytest.approx(math.log(2)), 1.5) for name in "bd"]
    assert paths_of(forest.trajectories[0]) == expected
    metrics = reduce_stats([question_stats(forest, [])])
    assert metrics["decisions/boss/paths"] == 1.0 and metrics["choices/boss/z"] == 0.5
    record = training_record(resolve(trace_question(forest), forest.llm.decode), "train", 1, 0)
    first, other, second = (call["decision"] for call in record["calls"][:3])
    assert first == {"options": ["b", "c"], "chosen": "b", "log_prob": pytest.approx(math.log(0.5))}
    assert second == {"options": ["z"], "chosen": "z", "log_prob": 0.0} and other is None
    (logged,) = by_step(json.loads(json.dumps([record])))["train", 1]
    assert paths_in(logged) == paths_of(forest.trajectories[0])
    known = {name.replace("<agent>", "boss").split("/<")[0] for name in METRICS}
    named = [name for name in metrics if name.startswith(("decisions/", "choices/"))]
    assert all(name in known or name.rpartition("/")[0] in known for name in named)


def made(text, options, turn=0, **given):
    return Call(CallId((), "boss", turn), Stream("0"), [], text=text, decides=True, options=options, **given)


def test_what_a_served_model_says_counts_if_it_names_an_option():
    """Neither tokens nor probabilities are known; one answer is none of the options."""
    calls = [made(' "B".', ("a", "b")), made("neither", ("a", "b"), 1, status=Status.UNPARSABLE), made("a", ("a",), 2)]
    assert [decision_of(call) for call in calls] == [
        Decision(("a", "b"), "b", None),
        Decision(("a", "b"), None, None),
        Decision(("a",), "a", None),
    ]
    paths = as_paths(((), "boss", call.id.turn, decision_of(call)) for call in reversed(calls))
    assert paths == [Path("boss", ("b", "a"), None, 1.5)]
    assert decision_of(Call(CallId((), "worker", 0), Stream("0"), [], text="a")) is None


def test_a_call_that_failed_has_chosen_nothing():
    assert decision_of(made("", ("", "b"), status=Status.ENGINE_ERROR)).chosen is None


def test_who_decides_by_the_names_of_metrics():
    names = ["decisions/b/top_path", "decisions/b/length", "val/decisions/c/top_path", "decisions/a/x/top_path"]
    assert deciding(names) == ["a/x", "b"]


def test_choices_from_changing_lists_are_not_counted_by_name():
    """Tools differ from question to question, and may be thousands."""
    own = [Path("action", (f"tool_{number}", f"tool_{number + 1}"), None, 2.0) for number in range(0, 34, 2)]
    metrics = decision_metrics(own)
    assert metrics["decisions/action/length"] == 2 and not [name for name in metrics if name.startswith("choices/")]
    assert "choices/action/tool_0" in decision_metrics(own[:1]), "two texts of two"
