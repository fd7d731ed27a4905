"""Several policies whose rollouts go on beside the training.

With no step ahead the numbers are those of the synchronous mode; with one ahead each policy has its own weights,
versions and parts of a step, also across kill -9.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.end_to_end.other_vocabulary import SHIFT, TINY, other_vocabulary
from tests.end_to_end.running import concerns, entries, lasting, records, run, run_and_kill, saved
from tests.end_to_end.test_adapters_of_policies import adapters
from tests.end_to_end.test_policies import OPTIMISER, policy, same, weights_of
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


@pytest.mark.slow
def test_with_no_step_ahead_the_numbers_are_those_of_the_synchronous_mode(tmp_path):
    """With an adapter per agent in one, a critic per policy, and a learning rate of its own."""
    adapted = policy("small", "rewriter, reranker", per_agent_lora="true", actor="{optim: {lr: 1e-2}}")
    two = [adapted, policy("large", "answerer", actor="{optim: {lr: 1e-4}}")]
    run(tmp_path / "sync", *SHORT, *two, recipe="mappo_tiny")
    run(tmp_path / "separate", *SHORT, *two, SEPARATE, *NONE_AHEAD, recipe="mappo_tiny")
    pairs = zip(*(compared(tmp_path / name, "mappo_tiny") for name in ("separate", "sync")), strict=True)
    for mine, theirs in pairs:  # equal but for the last bits of sums
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-6)


def test_a_killed_run_goes_on_with_each_policy_beside_its_rollouts(tmp_path):
    """An adapter per agent in every other step; beside them a whole model of another vocabulary. Steps of two parts,
    π_old computed."""
    settings = [
        *BESIDE,
        "mas.deterministic=false",
        policy("small", "rewriter, reranker", per_agent_lora="true", every="2", actor="{optim: {lr: 1e-2}}"),
        policy("large", "answerer", other_vocabulary(tmp_path / "other"), actor="{optim: {lr: 1e-3}}"),
        f"trainer.total_training_steps={STEPS}",
        f"trainer.test_freq={STEPS}",
    ]
    run_and_kill(tmp_path, *settings, after_step=1, saved=True)
    before = adapters(tmp_path, 1, "small")
    run(tmp_path, *settings)
    log = {entry["step"]: entry["metrics"] for entry in entries(tmp_path)}
    assert tuple(log) == tuple(range(1, STEPS + 1))
    lags = {name: [] for name in ("small", "large")}
    for step, metrics in log.items():
        assert metrics["update/rows"] == 96 and metrics["sampling/dropped_questions"] == 0
        for name, rows, updates in (("small", 64, 2 * (step % 2)), ("large", 32, 2)):
            mine = of_policy(name, metrics)
            assert mine["update/rows"] == rows and mine["update/optimiser_steps"] == updates
            assert mine["update/rests"] == (updates == 0)
            assert mine["doctor/unknown_version"] == mine["doctor/unknown_policy"] == 0
            assert mine["doctor/weights_compared"] == mine["doctor/weights_served"] == 1
            # Rows that the policy's last weights sampled: they have arrived in its engine, and not in the other one.
            assert mine.get("doctor/log_prob_difference_numerical", 0) < 1e-3
            lags[name].append(mine["doctor/version_lag_max"])
        assert metrics["policies/small/doctor/unknown_adapter"] == 0
        for agent in ("rewriter", "reranker") if step % 2 else ():
            assert metrics[f"policies/small/adapters/{agent}/grad_norm"] > 0
    assert max(lags["large"]) == 1
    # Its only updates are those of steps 1 and 3: the rows of step 3 were sampled by what step 1 made.
    assert max(lags["small"]) <= 1 and lags["small"][2] == 0
    page = words_of(tmp_path / "runs" / "mhgpo_tiny")
    assert "Policy small: trained in 2 of" in page and f"Policy large: trained in {STEPS} of {STEPS} steps" in page
    assert concerns(page) == []

    rested, after = adapters(tmp_path, 2, "small"), adapters(tmp_path, STEPS, "small")
    assert after.keys() == {"rewriter", "reranker"} and not same(*after.values())
    for agent, own in before.items():
        assert same(own, rested[agent]), "the resume goes on from the adapters that were saved"
        assert not same(own, after[agent]) and any(tensor.any() for name, tensor in own.items() if "lora_B" in name)
    taken = saved(tmp_path, STEPS, f"actor/small/{OPTIMISER}")["state"].values()
    assert {int(one["step"]) for one in taken} == {4}, "the optimiser goes on, too: two steps in each of two parts"
    sent = {step: metrics.get("policies/small/update/sent_mb") for step, metrics in log.items()}
    # The kill may have come before step 1 sent them.
    assert sent[2] is None, "adapters of a step in which they did not train are not sent again"
    assert sent[3] == sum(t.nbytes for own in after.values() for t in own.values()) / 1e6, "the base is not sent again"

    rows = weights_of(tmp_path, STEPS, "large")["model.embed_tokens.weight"].shape[0]
    assert rows == load_file(TINY / "model.safetensors")["model.embed_tokens.weight"].shape[0] + SHIFT
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
        policy("small", "rewriter, reranker", per_agent_lora="true", actor="{optim: {lr: 1e-2}}"),
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
