"""Training with the real vLLM: its build for CPUs, with verl's replica, worker and transport of weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rehearse import DTYPE, KL, ON_GPU, needs_vllm
from tests.rehearse.engines import ENVIRONMENT

pytestmark = [needs_vllm, pytest.mark.timeout(1800)]
OVERRIDES = [
    "data.train_batch_size=4",
    "trainer.total_training_steps=3",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.max_model_len=640",
    "actor_rollout_ref.rollout.enforce_eager=true",
    # The build has no sleep mode, and takes a share of the machine's memory unless it is told how much.
    "+actor_rollout_ref.rollout.enable_sleep_mode=false",
    "actor_rollout_ref.rollout.free_cache_engine=false",
    "+actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes=268435456",
]
# The tiny recipes are for the CPU.
CUDA = [
    "trainer.device=cuda",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.1",
    "~ray_kwargs.ray_init.runtime_env.env_vars.VERL_PLATFORM",
    f"actor_rollout_ref.rollout.dtype={DTYPE}",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=bf16",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype=bf16",
    "actor_rollout_ref.model.use_remove_padding=true",
]
OVERRIDES += CUDA if ON_GPU else []
POLICIES = [
    "+mas.policies.small={agents: [rewriter, reranker]}",
    "+mas.policies.large={agents: [answerer]}",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.1",
]
CASES = {
    "per_agent_lora": ["+recipe=mhgpo_tiny", "mas.policy=per_agent_lora", "actor_rollout_ref.actor.optim.lr=1e-3"],
    "fof": ["+recipe=mhgpo_tiny", "mas.sampling.strategy=fof"],
    "is": ["+recipe=mhgpo_tiny", "mas.sampling.strategy=is"],
    "rr": ["+recipe=mhgpo_tiny", "mas.sampling.strategy=rr"],
    "nmc": ["+recipe=mhgpo_tiny", "mas.sampling.strategy=nmc"],
    # An orchestrator chooses among given names: decisions.
    "puppeteer": ["+recipe=puppeteer_tiny"],
    "policies": ["+recipe=mhgpo_tiny", *POLICIES],
    # One agent whose output goes on after each tool's answer: streams and stop strings.
    "toolpo": ["+recipe=toolpo_tiny"],
}
# Trajectories of different lengths: when a batch is complete, others are in the middle of an output.
PARTIAL = [
    "+recipe=toolpo_tiny",
    "trainer.v1.trainer_mode=mas_colocate_async",
    "trainer.v1.colocate_async.num_warmup_batches=1",
    "trainer.total_training_steps=5",
]


def trained(run: Path, overrides: list[str]) -> list[dict[str, Any]]:
    """Train; the metrics of each step, whose weights were compared."""
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *OVERRIDES, *overrides]
    done = subprocess.run(
        [*command, f"trainer.default_local_dir={run}"],
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [entry["metrics"] for entry in entries if "doctor/seconds" in entry.get("metrics", {})]
    for step in steps:
        assert of(step, "doctor/weights_compared") == of(step, "doctor/weights_served") == {1.0}
        assert of(step, "doctor/unknown_adapter") <= {0.0}
    return steps


def of(step: dict[str, Any], name: str) -> set[float]:
    """A quantity of the run, or of each of its policies."""
    return {value for key, value in step.items() if key == name or key.startswith("policies/") and key.endswith(name)}


@pytest.mark.parametrize("case", CASES)
def test_three_steps_train_what_vllm_sampled_with_the_weights_it_was_sent(case: str, tmp_path: Path) -> None:
    steps = trained(tmp_path / "run", CASES[case])
    assert len(steps) == 3
    for step in steps:
        assert of(step, "doctor/tokens_checked") == {1.0}
        assert all(abs(each) < KL for each in of(step, "doctor/kl_numerical"))
    if case == "per_agent_lora":
        # The weights that serve are those sent (`trained`), so an adapter that an update has moved serves changed.
        for agent in ("rewriter", "reranker", "answerer"):
            assert max(step[f"adapters/{agent}/grad_norm"] for step in steps[:-1]) > 0, agent


def test_outputs_that_an_update_interrupts_go_on_with_the_new_weights(tmp_path: Path) -> None:
    run = tmp_path / "run"
    steps = trained(run, PARTIAL)
    assert len(steps) == 5 and all(step["sampling/failed_trajectories"] == 0 for step in steps)
    lines = [line for path in (run / "trajectories").glob("*.jsonl") for line in path.read_text().splitlines()]
    versions = [call["versions"] for line in lines for call in json.loads(line)["calls"]]
    assert any(newest > oldest for oldest, newest in versions), "no output spans an update"


OWN_RANKS = {
    "one": [],
    "two": POLICIES,
    "per_agent_lora": CASES["per_agent_lora"][1:],
    # An adapter for each agent of one, all weights of the other.
    "two, per_agent_lora": [*POLICIES, "+mas.policies.small.per_agent_lora=true"],
}


@pytest.mark.parametrize("overrides", OWN_RANKS.values(), ids=OWN_RANKS)
def test_rollouts_on_ranks_of_their_own_get_the_weights(overrides: list[str], tmp_path: Path) -> None:
    """`mas_separate_async`: the engine is in other processes than the trainer, on the CPU and on a second GPU."""
    own = [
        "trainer.v1.trainer_mode=mas_separate_async",
        "actor_rollout_ref.rollout.checkpoint_engine.backend=object_store",
    ]
    steps = trained(tmp_path / "run", ["+recipe=mhgpo_tiny", *own, *overrides])
    assert len(steps) == 3 and all(step["update/sent_mb"] > 0 for step in steps)
    assert all(of(step, "doctor/version_lag_max") <= {0, 1} for step in steps), "the rollouts are one step ahead"
