"""The system of docs/own_system.md whose model calls its tool natively."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.end_to_end.running import run, steps
from tests.examples.test_pages import blocks


@pytest.mark.slow
def test_a_system_with_native_tool_calls_trains(tmp_path):
    """The embedded model knows no tool format. Its chats train all the same, and it does not learn to raise."""
    for block in blocks("own_system.md"):
        name = next(line for line in block.splitlines() if not line.startswith("# @")).removeprefix("# ")
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(block)
    subprocess.run([sys.executable, "make_data.py"], cwd=tmp_path, check=True)
    run(
        tmp_path,
        f"hydra.searchpath=[file://{tmp_path}]",
        "trainer.total_training_steps=2",
        "actor_rollout_ref.rollout.n=2",
        recipe="capitals_native",
    )
    first, second = steps(tmp_path, "capitals_native")
    for metrics in (first, second):
        assert metrics["agents/reader/calls"] >= 16 and 0 <= metrics["agents/reader/unparsable"] <= 1
        assert metrics["agents/reader/no_tool_call"] == metrics["agents/reader/failed"] == 0
