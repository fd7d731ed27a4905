"""Real training runs in which rows are more or fewer than trajectories: memory folding, and JoyAgents-R1's top K."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from statistics import pvariance
from typing import Any

import pytest

from tests.trainer.running import entries, run

pytestmark = pytest.mark.end_to_end

JOYAGENTS = ["mas.workflow._target_=tests.trainer.watched.Search", "algorithm.adv_estimator=joyagents"]
JOYAGENTS += ["mas.sampling.strategy=nmc", "trainer.val_before_train=false", "trainer.test_freq=-1"]


def seen(folder: Path, experiment: str) -> list[dict[str, Any]]:
    """What tests/trainer/watched.py has written down, a step each."""
    lines = (folder / "runs" / experiment / "watched.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_folded_trajectories_are_several_rows_and_train(tmp_path):
    """Eight tasks of one to three calls, eight trajectories each: tasks of three do not fit a window."""
    run(
        tmp_path,
        "mas.workflow._target_=tests.trainer.watched.Tools",
        "trainer.total_training_steps=2",
        recipe="toolpo_tiny",
    )
    steps = entries(tmp_path, "toolpo_tiny")[1:]
    for step, watched in zip(steps, seen(tmp_path, "toolpo_tiny"), strict=True):
        rows, metrics = list(watched["rows"].values()), step["metrics"]
        assert metrics["update/rows"] == len(rows) and metrics["actor/grad_norm"] > 0
        windows = Counter(row["trajectory"] for row in rows)
        folds = {row["trajectory"]: row["metrics"]["folds"] for row in rows}
        assert len(windows) == 64 and windows == {name: 1 + number for name, number in folds.items()}
        assert metrics["system/folds"] == pytest.approx(sum(folds.values()) / 64) and sum(folds.values()) > 0
        assert {row["agent"] for row in rows} == {"agent"}, "the auxiliary role does not train"
        # Eq. 8: the rows of a trajectory are summed up, so a row of N weighs N / 64.
        assert metrics["update/weight_max"] == metrics["update/weight_min"] == pytest.approx(len(rows) / 64)
        for row in rows:
            assert row["response_len"] <= 128
            spans = [(first, stop) for _, first, stop in row["calls"]]
            assert row["calls"] and all(first < stop for first, stop in spans)
            # Actions lie within what the agent said, one output has at most one; each fold and each call is one.
            for first, stop in row["actions"]:
                assert any(a <= first < stop <= b for a, b in spans)
        actions = sum(len(row["actions"]) for row in rows)
        said = {row["trajectory"]: row["metrics"] for row in rows}.values()
        least = sum(one["tool_calls"] + one["folds"] + one["refused_folds"] for one in said)
        assert (
            least
            <= actions
            <= least + sum(one["broken_actions"] + one["limit_tokens"] + one["limit_folds"] for one in said)
        )


def test_only_the_rows_of_the_best_nodes_train_and_the_others_leave_the_queue(tmp_path):
    run(tmp_path, *JOYAGENTS, "+mas.advantage.top_k=1", "trainer.total_training_steps=2")
    for step, watched in zip(entries(tmp_path), seen(tmp_path, "mhgpo_tiny"), strict=True):
        rows, metrics = watched["rows"], step["metrics"]
        assert sorted(rows) == watched["queue"], "what does not train has left the queue"
        assert metrics["selection/dropped_rows"] > 0 and metrics["selection/dropped_groups"] > 0
        # Three nodes of each of eight questions, four samples of each.
        assert len(rows) + metrics["selection/dropped_rows"] == 96
        nodes = {(row["question"], row["group"]) for row in rows.values()}
        assert len(nodes) == metrics["selection/kept_groups"] == metrics["groups/count"]
        assert set(Counter(question for question, _ in nodes).values()) == {1}, "one node per question"
        for node in nodes:
            rewards = [row["reward"] for row in rows.values() if (row["question"], row["group"]) == node]
            assert len(rewards) == 4 and pvariance(rewards) > 0
        assert 0 < metrics["selection/variance_kept"] < 1
        assert metrics["update/rows"] == len(rows) and metrics["actor/grad_norm"] > 0


def test_where_no_node_has_any_variance_nothing_is_updated(tmp_path):
    """One sample of each node: not even momentum or decay may move the weights."""
    run(
        tmp_path,
        *JOYAGENTS,
        "actor_rollout_ref.rollout.n=1",
        "mas.sampling.group_size=1",
        "trainer.total_training_steps=1",
    )
    (step,) = entries(tmp_path)
    metrics = step["metrics"]
    assert metrics["selection/kept_groups"] == metrics["update/rows"] == metrics["update/optimiser_steps"] == 0
    assert not any(name.startswith("actor/grad_norm") for name in metrics)


def test_top_k_of_zero_keeps_every_row(tmp_path):
    run(tmp_path, *JOYAGENTS, "+mas.advantage.top_k=0", "trainer.total_training_steps=1")
    (step,), (watched,) = entries(tmp_path), seen(tmp_path, "mhgpo_tiny")
    metrics = step["metrics"]
    assert metrics["selection/dropped_rows"] == metrics["selection/dropped_groups"] == 0
    assert metrics["selection/variance_kept"] == 1.0
    assert sorted(watched["rows"]) == watched["queue"]
    assert len(watched["rows"]) == metrics["update/rows"] == 96 and metrics["groups/count"] == 24
