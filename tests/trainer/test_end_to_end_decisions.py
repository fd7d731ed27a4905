"""Real training runs of a system that decides: Puppeteer's orchestrator, alone and with its agents."""

from __future__ import annotations

import json

import pytest

from tests.trainer.running import entries, run

pytestmark = pytest.mark.end_to_end
RECIPE = "puppeteer_tiny"


def test_decisions_train_and_what_the_algorithm_keeps_is_gone_on_with(tmp_path):
    """Two explorations with a vote; stopped after two steps, and a third from the checkpoint."""
    overrides = ["mas.advantage.baseline=mean", "mas.workflow.width=2", "mas.advantage.momentum=0.5"]
    run(tmp_path, *overrides, "trainer.total_training_steps=2", recipe=RECIPE)
    run(tmp_path, *overrides, "trainer.total_training_steps=3", recipe=RECIPE)
    log = {entry["step"]: entry["metrics"] for entry in entries(tmp_path, RECIPE)}
    assert sorted(log) == [0, 1, 2, 3]
    kept = {}
    for step in (1, 2, 3):
        metrics = log[step]
        returned = metrics["agents/orchestrator/reward"]
        kept[step] = 0.5 * kept.get(step - 1, returned) + 0.5 * returned
        # π_old is what the engine sampled with, among the names; the trainer's differs by rounding, as it is among
        # them, too. Among all tokens it would be another distribution.
        assert abs(metrics["actor/ppo_kl"]) < 1e-5 and metrics["actor/grad_norm"] > 0
        assert metrics["decisions/orchestrator/entropy"] > 0.1
        shares = [value for name, value in metrics.items() if name.startswith("choices/orchestrator/")]
        assert sum(shares) == pytest.approx(1.0) and len(shares) > 4
        # One row per decision, in trajectories of two explorations.
        decisions = metrics["decisions/orchestrator/length"] * 2 * metrics["sampling/trajectories"]
        assert metrics["update/rows"] == pytest.approx(decisions)
        assert metrics["update/weight_max"] == pytest.approx(metrics["update/rows"] / metrics["sampling/trajectories"])
        # A return is the reward minus a price.
        assert returned < metrics["system/reward"]
    state = json.loads((tmp_path / "runs" / RECIPE / "global_step_3" / "algorithm.json").read_text())
    assert state == {"mean_return": pytest.approx(kept[3])}


def test_agents_train_beside_the_orchestrator(tmp_path):
    overrides = ["mas.workflow.train_agents=true", "mas.loss.agent_weights=batch", "trainer.val_before_train=false"]
    overrides += ["actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean", "trainer.test_freq=-1"]
    run(tmp_path, *overrides, "trainer.total_training_steps=1", recipe=RECIPE)
    (step,) = entries(tmp_path, RECIPE)
    metrics = step["metrics"]
    calls = sum(value for name, value in metrics.items() if name.startswith("agents/") and name.endswith("/calls"))
    assert metrics["update/rows"] == calls > metrics["agents/orchestrator/calls"]
    assert abs(metrics["actor/ppo_kl"]) < 1e-5 and metrics["actor/grad_norm"] > 0
    assert metrics["agents/reasoning/reward"] in (0.0, 1.0) or 0 < metrics["agents/reasoning/reward"] < 1
