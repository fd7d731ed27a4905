"""JoyAgents-R1 as it ships: memories that evolve with training; killed with SIGKILL, it goes on with the right ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.running import entries, lasting, run, run_and_kill
from verl_ext.memory import read_snapshot

pytestmark = pytest.mark.slow

RECIPE = "joyagents_tiny"
SETTINGS = ["mas.deterministic=true", "trainer.total_training_steps=4", "mas.prepare.output_dir=data"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """One uninterrupted run of 4 steps."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder, *SETTINGS, recipe=RECIPE)
    return folder


def memory(folder: Path, place: str = "memory") -> tuple[int, str]:
    """The step after which a memory is, and what it holds."""
    view = read_snapshot(folder / "runs" / RECIPE / place)
    return view.version, view.content_hash()


def test_memories_are_of_the_steps_before(whole):
    steps = [entry["metrics"] for entry in entries(whole, RECIPE)]
    _, first, *others = steps
    assert first["memory/hit_rate"] == 0, "what the first step's rollouts find"
    assert first["memory/inserted"] == first["memory/memories"] > 0
    held = first["memory/memories"]
    for step in others:
        assert 0 < step["memory/hit_rate"] <= 1 and 0 < step["memory/recalled"] <= held
        deleted = step["memory/deleted_low"] + step["memory/deleted_full"]
        assert step["memory/memories"] == held + step["memory/inserted"] - deleted
        held = step["memory/memories"]
    assert memory(whole)[0] == memory(whole, "global_step_4/memory")[0] == 4


def test_only_the_nodes_of_largest_variance_train(whole):
    for entry in entries(whole, RECIPE)[1:]:
        metrics = entry["metrics"]
        assert metrics["selection/dropped_rows"] > 0 and metrics["actor/grad_norm"] > 0
        assert metrics["update/rows"] == 5 * metrics["selection/kept_groups"] + metrics["update/padding_rows"]
        assert 0 < metrics["selection/kept_groups"] <= 2 * 8, "K = 2 for each of eight questions"
        assert 0 < metrics["selection/variance_kept"] <= 1


def test_killed_and_started_again_it_goes_on_with_the_checkpoints_memory(whole, tmp_path):
    run_and_kill(tmp_path, *SETTINGS, after_step=3, recipe=RECIPE)
    assert memory(tmp_path)[0] >= 3, "written after every step"
    assert memory(tmp_path, "global_step_2/memory") == memory(whole, "global_step_2/memory")
    run(tmp_path, *SETTINGS, recipe=RECIPE)
    resumed, uninterrupted = entries(tmp_path, RECIPE), entries(whole, RECIPE)
    assert [entry["step"] for entry in resumed] == [0, 1, 2, 3, 4]
    for again, once in zip(resumed, uninterrupted, strict=True):
        assert lasting(again) == lasting(once), again["step"]
    assert memory(tmp_path) == memory(whole) and memory(tmp_path)[0] == 4
