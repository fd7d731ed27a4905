"""Puppeteer: the policy decides which agent acts next, in two explorations with a vote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.end_to_end.running import last_metrics, run, run_again_from, steps

RECIPE = "puppeteer_tiny"
SETTINGS = ["mas.deterministic=true", "mas.advantage.baseline=mean", "mas.advantage.momentum=0.5"]
SETTINGS += ["mas.workflow.width=2", "trainer.total_training_steps=3", "mas.prepare.output_dir=data"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Three steps of two explorations with a vote."""
    folder = tmp_path_factory.mktemp("decisions")
    run(folder, *SETTINGS, recipe=RECIPE)
    return folder


def test_the_policy_learns_among_the_names_it_may_choose(whole):
    kept = None
    for metrics in steps(whole, RECIPE):
        returned = metrics["agents/orchestrator/reward"]
        kept = returned if kept is None else 0.5 * kept + 0.5 * returned
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
    assert state(whole) == {"mean_return": pytest.approx(kept)}


def state(folder: Path) -> dict[str, float]:
    """The algorithm's state after the last step."""
    return json.loads((folder / "runs" / RECIPE / "global_step_3" / "algorithm.json").read_text())


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_the_algorithms_state(whole, tmp_path):
    run_again_from(2, whole, tmp_path, *SETTINGS, recipe=RECIPE)
    assert state(tmp_path) == state(whole)
    assert last_metrics(tmp_path, RECIPE) == last_metrics(whole, RECIPE)
