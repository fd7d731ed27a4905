"""Real training runs through the real command: Ray, FSDP2, TransferQueue, the engine, validation, checkpoints, resume.

The real runs are in three files, because `make test` deals out files to its processes: this one,
test_end_to_end_modes.py and test_end_to_end_failures.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.trainer.running import entries, lasting, run, run_and_kill
from verl_ext.observe.metrics import METRICS

pytestmark = pytest.mark.end_to_end

# Fixed scheduling: everything that is not a duration must come out the same.
DETERMINISTIC = ["mas.deterministic=true", "trainer.total_training_steps=4"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, str]:
    """One uninterrupted deterministic run of 4 steps and its output."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(folder, *DETERMINISTIC, "trainer.logger=[console,file,tensorboard]")


def test_the_output_is_for_a_person(whole):
    _, output = whole
    assert re.search(r"step 4/4  reward [\d.]+  [\d,]+ tok/s  [\d.]+ s .*validation F1 [\d.]+", output), output
    for part in ("Done.", "validation F1", "learning_curve.png", "checkpoint", "metrics.jsonl", "Next:"):
        assert part in output


def test_what_a_run_leaves(whole):
    run_folder = whole[0] / "runs" / "mhgpo_tiny"
    assert (run_folder / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert (run_folder / "latest_checkpointed_iteration.txt").read_text() == "4"
    assert (run_folder / "global_step_4" / "complete").exists()
    assert [entry["step"] for entry in entries(whole[0])] == [0, 1, 2, 3, 4]


def test_one_optimiser_step_and_all_rows_each_step(whole):
    for entry in entries(whole[0])[1:]:
        metrics = entry["metrics"]
        assert metrics["update/optimiser_steps"] == 1
        assert (
            metrics["update/rows"] == metrics["sampling/agent_calls"] == metrics["sampling/agent_calls_formula"] == 96
        )
        assert metrics["update/padding_rows"] == 0
        assert metrics["actor/grad_norm"] > 0


def test_every_metric_is_documented_and_reaches_verls_loggers(whole):
    folder, output = whole
    ours = [n for n in entries(folder)[-1]["metrics"] if n.split("/")[0] in {m.split("/")[0] for m in METRICS}]
    patterns = [re.compile(re.sub(r"<\w+>", r"[^/]+", name) + "$") for name in METRICS]
    assert len(ours) > 40
    assert not [name for name in ours if not any(pattern.match(name) for pattern in patterns)]
    board = EventAccumulator(str(next(folder.glob("tensorboard_log/**/events*"))))
    board.Reload()
    lines = (folder / "verl_ext" / "mhgpo_tiny.jsonl").read_text().splitlines()
    logged = json.loads(lines[-1])["data"]
    for name in ours:
        assert name in board.Tags()["scalars"] and name in logged


def test_killed_and_started_again_it_gives_the_same_metrics(whole, tmp_path):
    run_and_kill(tmp_path, *DETERMINISTIC, after_step=3)
    log = tmp_path / "runs" / "mhgpo_tiny"
    assert (log / "latest_checkpointed_iteration.txt").read_text() == "2"
    # What a kill in the middle of writing the tracker leaves; the marker of the checkpoint repairs it.
    (log / "latest_checkpointed_iteration.txt").write_text("")
    run(tmp_path, *DETERMINISTIC)
    resumed, uninterrupted = entries(tmp_path), entries(whole[0])
    assert [entry["step"] for entry in resumed] == [0, 1, 2, 3, 4]
    for again, once in zip(resumed, uninterrupted, strict=True):
        assert lasting(again) == lasting(once), again["step"]


def test_a_finished_run_says_so_and_does_not_start_again(whole):
    output = run(whole[0], *DETERMINISTIC, timeout=120)
    assert "complete already" in output and "Started a local Ray instance" not in output
