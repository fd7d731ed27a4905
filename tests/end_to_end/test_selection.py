"""JoyAgents-R1's top K by node-wise Monte Carlo: only rows of the best nodes train, and without variance none do."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import pvariance
from typing import Any

import pytest
import torch

from tests.end_to_end.running import records, run, seen, steps, weights
from tests.end_to_end.trajectory_log import check_tokens

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two steps. In the second all rewards are equal (watched.Search)."""
    folder = tmp_path_factory.mktemp("selection")
    options = ["mas.workflow._target_=tests.end_to_end.watched.Search", "algorithm.adv_estimator=joyagents"]
    options += ["mas.sampling.strategy=nmc", "+mas.advantage.top_k=1", "trainer.val_before_train=false"]
    run(folder, *options, "trainer.test_freq=-1", "trainer.save_freq=1", "trainer.total_training_steps=2")
    return folder


def test_only_the_rows_of_the_best_nodes_train_and_the_others_leave_the_queue(folder):
    metrics, watched = steps(folder)[0], seen(folder)[0]
    rows = watched["rows"]
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


def test_where_no_node_has_any_variance_not_even_momentum_moves_the_weights(folder):
    metrics = steps(folder)[1]
    assert metrics["selection/kept_groups"] == metrics["update/rows"] == metrics["update/optimiser_steps"] == 0
    assert not any(name.startswith("actor/grad_norm") for name in metrics)
    before, after = weights(folder, 1), weights(folder, 2)
    assert len(before) > 10 and all(torch.equal(before[name], after[name]) for name in before)


def test_the_log_holds_every_call_of_the_tree_and_the_tools_that_trajectories_share(folder):
    questions, calls = records(folder)
    check_tokens(calls)
    names: set[Any] = {(call["step"], call["question"]["number"], call["id"]) for call in calls}
    assert len(names) == len(calls) == 2 * 4 * 21
    shared = [tool for line in questions for tool in line["tools"] if len(tool["trajectories"]) > 1]
    assert len(shared) == 2 * 4 and all(tool["after"] == ["0 | rewriter.0"] for tool in shared)
