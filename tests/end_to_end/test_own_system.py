"""The system of examples/own_system, with verl's own GRPO."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.running import run, steps


@pytest.mark.slow
def test_the_examples_own_system_trains_with_verls_grpo(tmp_path):
    root = Path(__file__).parents[2]
    run(
        tmp_path,
        f"hydra.searchpath=[file://{root / 'examples' / 'own_system'}]",
        "algorithm.adv_estimator=grpo",
        "trainer.total_training_steps=1",
        recipe="own_system",
    )
    (metrics,) = steps(tmp_path, "own_system")
    assert metrics["agents/checker/calls"] >= 32
    assert metrics["system/reward"] > 0 and metrics["groups/zero_variance"] < 0.95  # there is something to learn from
