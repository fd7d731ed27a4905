"""Several policies whose rollouts go on beside the training.

With no step ahead the numbers are those of the synchronous mode; with one ahead each policy has its own weights,
versions and parts of a step, also across kill -9.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.other_vocabulary import SHIFT, other_vocabulary
from tests.end_to_end.running import entries, lasting, records, run, run_and_kill
from tests.end_to_end.test_policies import policy, weights_of
from tests.end_to_end.test_separate_async import BESIDE
from tests.end_to_end.trajectory_log import check_tokens
from verl_ext.doctor import words_of

SEPARATE = "trainer.v1.trainer_mode=mas_separate_async"
# The rollouts wait for each update.
NONE_AHEAD = ["trainer.v1.separate_async.num_warmup_batches=0", "trainer.v1.sampler.max_off_policy_threshold=1"]
SHORT = ["mas.deterministic=false", "trainer.total_training_steps=2", "trainer.save_freq=-1"]
# What only asynchronous modes have.
OF_THE_MODE = ("update/sent_mb", "training/off_policy/", "doctor/unknown_policy")
STEPS = 3


def compared(folder: Path, recipe: str) -> list[dict[str, Any]]:
    """The metrics of each entry that both modes have."""
    return [
        {name: value for name, value in lasting(entry).items() if not any(part in name for part in OF_THE_MODE)}
        for entry in entries(folder, recipe)
    ]


def of_policy(name: str, metrics: dict[str, Any]) -> dict[str, Any]:
    """The metrics of a policy, without its prefix."""
    prefix = f"policies/{name}/"
    return {key.removeprefix(prefix): value for key, value in metrics.items() if key.startswith(prefix)}


def check_equal(one: Path, other: Path, recipe: str = "mhgpo_tiny") -> None:
    """Two runs have the same metrics but for the last bits of sums."""
    for mine, theirs in zip(compared(one, recipe), compared(other, recipe), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-6)


@pytest.mark.slow
def test_with_no_step_ahead_the_numbers_are_those_of_the_synchronous_mode(tmp_path):
    """With a critic per policy, and a learning rate of its own."""
    two = [policy("small", "rewriter, reranker"), policy("large", "answerer", actor="{optim: {lr: 1e-4}}")]
    run(tmp_path / "sync", *SHORT, *two, recipe="mappo_tiny")
    run(tmp_path / "separate", *SHORT, *two, SEPARATE, *NONE_AHEAD, recipe="mappo_tiny")
    check_equal(tmp_path / "separate", tmp_path / "sync", "mappo_tiny")


@pytest.mark.slow
def test_one_policy_is_the_run_without_policies(tmp_path):
    run(tmp_path / "plain", *SHORT, SEPARATE, *NONE_AHEAD)
    run(tmp_path / "one", *SHORT, SEPARATE, *NONE_AHEAD, policy("all", "rewriter, reranker, answerer"))
    check_equal(tmp_path / "one", tmp_path / "plain")


def test_a_killed_run_goes_on_with_each_policy_beside_its_rollouts(tmp_path):
    """Two vocabularies, one policy that trains in every other step, steps of two parts, π_old computed."""
    settings = [
        *BESIDE,
        "mas.deterministic=false",
        policy("small", "rewriter, reranker"),
        policy("large", "answerer", other_vocabulary(tmp_path / "other"), every="2", actor="{optim: {lr: 1e-3}}"),
        f"trainer.total_training_steps={STEPS}",
        f"trainer.test_freq={STEPS}",
    ]
    run_and_kill(tmp_path, *settings, after_step=1)
    run(tmp_path, *settings)
    log = {entry["step"]: entry["metrics"] for entry in entries(tmp_path)}
    assert tuple(log) == tuple(range(1, STEPS + 1))
    lags = {name: [] for name in ("small", "large")}
    for step, metrics in log.items():
        assert metrics["update/rows"] == 96 and metrics["sampling/dropped_questions"] == 0
        for name, rows, updates in (("small", 64, 2), ("large", 32, 2 * (step % 2))):
            mine = of_policy(name, metrics)
            assert mine["update/rows"] == rows and mine["update/optimiser_steps"] == updates
            assert mine["update/rests"] == (updates == 0)
            assert mine["doctor/unknown_version"] == mine["doctor/unknown_policy"] == 0
            assert mine["doctor/weights_compared"] == 1
            # Rows that the policy's last weights sampled: they have arrived in its engine, and not in the other one.
            assert mine.get("doctor/log_prob_difference_numerical", 0) < 1e-3
            lags[name].append(mine["doctor/version_lag_max"])
    assert max(lags["small"]) == 1
    # Its only updates are those of steps 1 and 3: the rows of step 3 were sampled by what step 1 made.
    assert max(lags["large"]) <= 1 and lags["large"][2] == 0
    sent = [step for step, metrics in log.items() if "policies/large/update/sent_mb" in metrics]
    # The kill may have come before step 1 sent them.
    assert {3} <= set(sent) <= {1, 3}, "the weights of a step in which it did not train are not sent again"
    page = words_of(tmp_path / "runs" / "mhgpo_tiny")
    assert f"Policy small: trained in {STEPS} of {STEPS} steps" in page and "Policy large: trained in 2 of" in page
    assert "Nothing to look at." in page

    sizes = {
        name: weights_of(tmp_path, STEPS, name)["model.embed_tokens.weight"].shape[0] for name in ("small", "large")
    }
    assert sizes["large"] == sizes["small"] + SHIFT
    questions, calls = records(tmp_path)
    trained = [(q["step"], q["question"]["number"], q["question"]["index"]) for q in questions if q["phase"] == "train"]
    assert sorted((step, number) for step, number, _ in trained) == [(s, n) for s in log for n in range(8)]
    assert len({index for *_, index in trained}) == 8 * STEPS, "no question trains twice"
    check_tokens(calls)


@pytest.mark.slow
def test_unfinished_trajectories_go_on_with_the_new_weights_of_each_policy(tmp_path):
    """mas_colocate_async."""
    run(
        tmp_path,
        "trainer.v1.trainer_mode=mas_colocate_async",
        "trainer.v1.colocate_async.num_warmup_batches=1",
        "mas.deterministic=false",
        policy("small", "rewriter, reranker"),
        policy("large", "answerer", other_vocabulary(tmp_path / "other"), every="2"),
        "algorithm.rollout_correction.bypass_mode=false",
        "trainer.total_training_steps=4",
        "trainer.test_freq=-1",
    )
    log = [entry["metrics"] for entry in entries(tmp_path) if entry["step"] > 0]
    for name in ("small", "large"):
        mine = [of_policy(name, one) for one in log]
        assert all(one["doctor/unknown_policy"] == one["doctor/unknown_version"] == 0 for one in mine)
        assert all(one.get("doctor/log_prob_difference_numerical", 0) < 1e-3 for one in mine)
        assert max(one["doctor/version_lag_max"] for one in mine) >= 1
