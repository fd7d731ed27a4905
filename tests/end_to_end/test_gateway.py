"""A program that asks by HTTP trains as a workflow does: forked, in waves, with the same metrics."""

from __future__ import annotations

import pytest

from tests.end_to_end.running import run, steps

PROGRAM = "mas.workflow._target_=tests.end_to_end.gateway_program.SearchProgram"


@pytest.mark.slow
def test_the_search_system_trains_as_a_program(tmp_path):
    run(tmp_path, PROGRAM, "mas.sampling.strategy=rr", "trainer.total_training_steps=2")
    for metrics in steps(tmp_path):
        assert metrics["sampling/failed_trajectories"] == metrics["sampling/without_forks"] == 0
        assert metrics["sampling/trajectories"] == 32 and metrics["agents/answerer/calls"] >= 24
        assert metrics["system/reward"] > 0
    assert sum(metrics["sampling/replayed_calls"] for metrics in steps(tmp_path)) > 0


@pytest.mark.slow
def test_its_calls_go_to_the_engine_in_waves(tmp_path):
    """With `mas.deterministic` a wave waits for programs that work; none waits for ever."""
    run(tmp_path, PROGRAM, "mas.deterministic=true", "trainer.total_training_steps=1")
    (metrics,) = steps(tmp_path)
    assert metrics["sampling/agent_calls"] >= 90 and not metrics["sampling/failed_trajectories"]
