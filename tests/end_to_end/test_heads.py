"""A policy head decides for Puppeteer's orchestrator: beside agents that train, alone, resumed, and evaluated."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.end_to_end.running import entries, environment, last_metrics, run, run_again_from, saved, steps, weights

RECIPE = "puppeteer_tiny"
HEAD = "+mas.agents.orchestrator.head={encoder: hashing, lr: 0.1, entropy: 0.01}"
SETTINGS = [HEAD, "mas.deterministic=true", "trainer.save_freq=1", "mas.advantage.baseline=mean"]
SETTINGS += ["mas.prepare.output_dir=data", "trainer.total_training_steps=3", "trainer.test_freq=3"]


@pytest.mark.slow
def test_head_and_agents_train_in_one_run(tmp_path):
    overrides = [HEAD, "mas.workflow.train_agents=true", "mas.loss.agent_weights=batch", "trainer.test_freq=-1"]
    overrides += ["actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean", "trainer.val_before_train=false"]
    run(tmp_path, *overrides, "trainer.total_training_steps=1", recipe=RECIPE)
    (metrics,) = steps(tmp_path, RECIPE)
    calls = {name: value for name, value in metrics.items() if name.startswith("agents/") and name.endswith("/calls")}
    assert metrics["update/rows"] == sum(calls.values()) - calls["agents/orchestrator/calls"] > 0
    assert calls["agents/orchestrator/calls"] > 0
    assert metrics["head/orchestrator/grad_norm"] > 0 and metrics["actor/grad_norm"] > 0
    assert abs(metrics["actor/ppo_kl"]) < 1e-5
    assert 0 <= metrics["agents/reasoning/reward"] <= 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """One uninterrupted run of 3 steps, of which the last two checkpoints are kept."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder, *SETTINGS, recipe=RECIPE)
    return folder


@pytest.mark.slow
def test_a_head_learns_while_the_policy_stands_still(whole):
    before, first, second, third = (entry["metrics"] for entry in entries(whole, RECIPE))
    assert first["decisions/orchestrator/entropy"] == pytest.approx(math.log(9)), "a new head is uniform"
    assert first["head/orchestrator/entropy"] == pytest.approx(math.log(9))
    assert second["head/orchestrator/entropy"] < math.log(9) and third["head/orchestrator/entropy"] < math.log(9)
    assert second["decisions/orchestrator/entropy"] != pytest.approx(math.log(9), abs=1e-6)
    for step in (first, second, third):
        assert (step["update/rows"], step["update/optimiser_steps"]) == (0, 0) and step[
            "head/orchestrator/grad_norm"
        ] > 0
        assert step["agents/orchestrator/output_tokens"] == 0 < step["agents/planning/output_tokens"]
        assert step["head/orchestrator/return"] == pytest.approx(step["agents/orchestrator/reward"])
        assert step["head/orchestrator/decisions"] == step["agents/orchestrator/calls"]
        assert "actor/grad_norm" not in step and "groups/count" not in step
    assert "val/system/accuracy" in before and "val/system/accuracy" in third
    old, new = (weights(whole, step, RECIPE) for step in (2, 3))
    assert len(old) > 10 and all(torch.equal(old[name], new[name]) for name in old)
    assert head(whole, 2)["version"] == 2


def head(folder: Path, step: int) -> dict:
    """The orchestrator's head in a checkpoint."""
    return saved(folder, step, "heads/heads.pt", RECIPE)["orchestrator"]


@pytest.mark.slow
def test_a_resumed_run_is_the_same_run(whole, tmp_path):
    run_again_from(2, whole, tmp_path, *SETTINGS, recipe=RECIPE)
    again, once = head(tmp_path, 3), head(whole, 3)
    assert torch.equal(again["matrix"], once["matrix"]) and again["baseline"] == once["baseline"]
    for name in ("exp_avg", "exp_avg_sq", "step"):
        assert torch.equal(again["adam"][0][name], once["adam"][0][name]), name
    assert last_metrics(tmp_path, RECIPE) == last_metrics(whole, RECIPE)


@pytest.mark.slow
def test_a_checkpoint_is_evaluated_with_its_head(whole, tmp_path):
    model = whole / "runs" / RECIPE / "global_step_3"
    command = [sys.executable, "-m", "verl_ext.evaluate", f"+recipe={RECIPE}", HEAD, f"evaluate.model={model}"]
    command += [f"mas.prepare.output_dir={whole / 'data'}", "evaluate.max_questions=8", "evaluate.output=out"]
    options = {"cwd": tmp_path, "env": environment(), "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run(command, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(results["settings"]["heads"]) == 16
    lines = [json.loads(line) for line in (tmp_path / "out" / "trajectories.jsonl").read_text().splitlines()]
    chosen = [call["output"] for line in lines for call in line.get("calls", ()) if call["agent"] == "orchestrator"]
    assert len(chosen) >= 8
    refused = subprocess.run([*command[:5], *command[6:]], **options)
    assert refused.returncode == 2 and "policy head of orchestrator has no weights here" in refused.stderr
