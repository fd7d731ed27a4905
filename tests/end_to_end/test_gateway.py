"""Programs that ask by HTTP train as workflows do: forked, in waves, with the same metrics."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.end_to_end.running import records, run, steps

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "plain_script"
PROGRAM = "mas.workflow._target_=tests.end_to_end.gateway_program.SearchProgram"


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


@pytest.mark.slow
def test_the_search_system_trains_as_a_program(tmp_path):
    run(tmp_path, PROGRAM, "mas.sampling.strategy=rr", "trainer.total_training_steps=2")
    for metrics in steps(tmp_path)[:2]:
        assert metrics["sampling/failed_trajectories"] == metrics["sampling/without_forks"] == 0
        assert metrics["sampling/trajectories"] == 32 and metrics["agents/answerer/calls"] >= 24
        assert metrics["system/reward"] > 0
    assert sum(metrics["sampling/replayed_calls"] for metrics in steps(tmp_path)[:2]) > 0


@pytest.mark.slow
def test_its_calls_go_to_the_engine_in_waves(tmp_path):
    """With `mas.deterministic` a wave waits for programs that work; none waits for ever."""
    run(tmp_path, PROGRAM, "mas.deterministic=true", "trainer.total_training_steps=1")
    metrics = steps(tmp_path)[0]
    assert metrics["sampling/agent_calls"] >= 60 and not metrics["sampling/failed_trajectories"]
