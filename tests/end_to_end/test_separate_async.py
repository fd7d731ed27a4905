"""Mode mas_separate_async: adapters sent to an engine of its own, a step in two parts, staleness bounded, kill -9.

A run of its own: no other has rollouts beside the training, or a queue to resume from.
"""

from __future__ import annotations

from tests.end_to_end.running import entries, records, run, run_and_kill
from tests.end_to_end.trajectory_log import check_tokens

STEPS = 4
# Rollouts beside steps of two parts, π_old computed, and all trajectories recorded.
BESIDE = [
    "trainer.v1.trainer_mode=mas_separate_async",
    "data.train_batch_size=8",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "trainer.v1.separate_async.parameter_sync_step=2",
    # No row is begun more than one step before, and none is given up.
    "trainer.v1.sampler.max_off_policy_threshold=2",
    "trainer.v1.sampler.max_off_policy_strategy=wait",
    "algorithm.rollout_correction.bypass_mode=false",
    "algorithm.rollout_correction.rollout_is=token",
    "trainer.save_freq=1",
    "trainer.val_before_train=false",
    "mas.trajectory_log.train_questions=8",
    "mas.trajectory_log.files=100",
]
SETTINGS = [
    *BESIDE,
    "mas.policy=per_agent_lora",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    f"trainer.total_training_steps={STEPS}",
    f"trainer.test_freq={STEPS}",
]


def test_a_killed_run_goes_on_beside_its_rollouts(tmp_path):
    run_and_kill(tmp_path, *SETTINGS, after_step=2)
    run(tmp_path, *SETTINGS)
    log = {entry["step"]: entry["metrics"] for entry in entries(tmp_path)}
    assert tuple(log) == tuple(range(1, STEPS + 1))
    for metrics in log.values():
        assert metrics["update/rows"] == 96 and metrics["update/optimiser_steps"] == 2
        assert metrics["sampling/questions"] == 8 and metrics["sampling/dropped_questions"] == 0
        assert metrics["doctor/version_lag_max"] <= 1 and metrics["doctor/unknown_version"] == 0
        assert metrics["doctor/unknown_adapter"] == 0 and metrics["doctor/weights_compared"] == 1
        # Rows that the last weights sampled: the adapters have arrived.
        assert metrics.get("doctor/log_prob_difference_numerical", 0) < 1e-3
        assert 0.5 < metrics["rollout_corr/rollout_is_mean"] <= 2
    assert max(metrics["doctor/version_lag_max"] for metrics in log.values()) == 1
    assert "val/system/f1" in log[STEPS]

    questions, calls = records(tmp_path)
    trained = [(q["step"], q["question"]["number"], q["question"]["index"]) for q in questions if q["phase"] == "train"]
    assert sorted((step, number) for step, number, _ in trained) == [(s, n) for s in log for n in range(8)]
    assert len({index for *_, index in trained}) == 8 * STEPS, "no question trains twice"
    check_tokens(calls)
