"""A baseline trains, with a judge's verdicts as its reward; a verdict that fails leaves its trajectory out."""

from __future__ import annotations

import pytest

from tests.end_to_end.running import entries, run
from tests.rewards.judging import serving

pytestmark = pytest.mark.slow
SYSTEM = "{_target_:verl_ext.recipe.baselines.ReWOO,tools:retrieved,budget:2,success:hle}"


def test_rewoo_trains_on_a_judges_verdicts(tmp_path):
    """Two steps. The only run with a judge; the tiny model knows nothing of ReWOO, so the judge likes even lengths."""

    def rule(fields):
        if fields["number"] % 9 == 8:
            return 500, b"down"
        return {"correct": "yes" if len(fields["response"]) % 2 else "no"}

    lengths = ["data.max_prompt_length=3000", "data.max_response_length=48", "trainer.total_training_steps=2"]
    small = ["data.train_batch_size=4", "data.val_max_samples=4", "trainer.save_freq=-1"]
    with serving(rule) as server:
        judge = [f"mas.judge.url={server.url}", "mas.judge.retries=0", "mas.failure.max_left_out=0.9"]
        run(tmp_path, "~mas.workflow", f"+mas.workflow={SYSTEM}", *lengths, *small, *judge, recipe="smurfs_tiny")
    log = {entry["step"]: entry["metrics"] for entry in entries(tmp_path, "smurfs_tiny")}
    assert sorted(log) == [0, 1, 2]
    steps = [log[step] for step in (1, 2)]
    assert all(0 < metrics["system/reward"] < 1 and metrics["update/rows"] > 0 for metrics in steps)
    assert (
        sum(metrics["sampling/failed/judge_error"] for metrics in steps if metrics["sampling/failed_trajectories"]) > 0
    )
    assert any(metrics["actor/grad_norm"] > 0 for metrics in steps)
    assert {"agents/planner/calls", "agents/agent/calls", "system/judge_calls", "system/judge_tokens"} <= set(steps[0])
