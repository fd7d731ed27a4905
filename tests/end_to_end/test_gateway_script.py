"""A script in a process of its own, trained through the gateway."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.end_to_end.running import records, run, steps

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "plain_script"


@pytest.mark.slow
def test_a_script_trains_with_forks_at_any_of_its_requests(tmp_path):
    run(
        tmp_path,
        f"hydra.searchpath=[file://{SCRIPT}]",
        f"mas.workflow.command=[{sys.executable},-S,{SCRIPT / 'solve.py'}]",
        "mas.sampling.strategy=rr",
        "trainer.total_training_steps=2",
        recipe="plain_script",
    )
    first, last = steps(tmp_path, "plain_script")[:2]
    for metrics in (first, last):
        assert metrics["agents/solver/calls"] > 0 and metrics["agents/verifier/calls"] > 0
        assert metrics["sampling/failed_trajectories"] == metrics["sampling/without_forks"] == 0
    assert first["sampling/replayed_calls"] + last["sampling/replayed_calls"] > 0
    _, calls = records(tmp_path, "plain_script")
    checks = [call for call in calls if call["agent"] == "verifier"]
    assert checks and all(call["parents"] for call in checks), "a check follows from the solution that it quotes"
