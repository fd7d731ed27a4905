"""Real training runs: several ranks and mini-batches, partial rollouts, a critic, a system of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.running import entries, run

pytestmark = pytest.mark.end_to_end

SPANS = "training/off_policy/trajectory_spans/max"
OLDEST = "training/off_policy/trajectory_staleness_worst/max"


def test_two_ranks_two_mini_batches_round_robin(tmp_path):
    output = run(
        tmp_path,
        "trainer.n_gpus_per_node=2",
        "trainer.total_training_steps=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "mas.sampling.strategy=rr",
        "mas.sampling.rr.regroup=shuffle",
        "mas.sampling.rr.probabilities=[0.2,0.4,0.4]",
        # π_old is computed again, as on GPUs.
        "algorithm.rollout_correction.bypass_mode=false",
        # Sampling in a process of its own, as on GPUs.
        "actor_rollout_ref.rollout.agent.num_workers=1",
    )
    assert "Done." in output
    for entry in entries(tmp_path)[1:]:
        metrics = entry["metrics"]
        assert metrics["update/optimiser_steps"] == 2
        assert metrics["update/padding_rows"] <= 3
        assert metrics["sampling/agent_calls"] == metrics["sampling/agent_calls_formula"]
        assert metrics["update/rows"] + metrics["groups/dropped_rows"] == metrics["sampling/agent_calls"]
        assert metrics["update/weight_max"] > metrics["update/weight_min"] > 0
        assert metrics["actor/grad_norm"] > 0
        # Every group that the advantages were computed in has G members, the shuffled singletons' as well.
        assert metrics["groups/size"] == 4 and metrics["groups/single"] == 0


def test_colocated_asynchronous_training_goes_on_with_partial_rollouts(tmp_path):
    run(
        tmp_path,
        "trainer.v1.trainer_mode=mas_colocate_async",
        "trainer.v1.colocate_async.num_warmup_batches=3",
        # The head start is used up after three steps; from then on weights change under unfinished trajectories.
        "trainer.total_training_steps=7",
    )
    log = entries(tmp_path)[1:]
    assert [entry["step"] for entry in log] == [1, 2, 3, 4, 5, 6, 7]
    for entry in log:
        assert entry["metrics"]["update/rows"] == 96
        assert entry["metrics"]["sampling/failed_trajectories"] == 0
    # Rows whose one output was begun under one version of the weights and finished under another, and say so.
    assert max(entry["metrics"][SPANS] for entry in log) >= 2
    assert max(entry["metrics"][OLDEST] for entry in log) >= 1


def test_mappo_trains_a_shared_critic(tmp_path):
    run(tmp_path, "trainer.total_training_steps=2", recipe="mappo_tiny")
    for entry in entries(tmp_path, "mappo_tiny")[1:]:
        metrics = entry["metrics"]
        assert metrics["critic/grad_norm"] > 0 and metrics["actor/grad_norm"] > 0
        assert metrics["update/rows"] == 24
        assert metrics["update/weight_max"] == metrics["update/weight_min"] == 1


def test_the_examples_own_system_trains_with_verls_grpo(tmp_path):
    root = Path(__file__).parents[2]
    run(
        tmp_path,
        f"hydra.searchpath=[file://{root / 'examples' / 'own_system'}]",
        "algorithm.adv_estimator=grpo",
        "trainer.total_training_steps=1",
        recipe="own_system",
    )
    metrics = entries(tmp_path, "own_system")[-1]["metrics"]
    assert metrics["agents/checker/calls"] >= 32
    assert metrics["system/reward"] > 0 and metrics["groups/zero_variance"] < 0.95  # there is something to learn from
