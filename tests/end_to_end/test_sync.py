"""Mode mas_sync with shared weights on the Hugging Face engine: output, metrics, checkpoints, logs and a resume."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.end_to_end.running import entries, lasting, records, run, run_again_from, steps
from tests.end_to_end.trajectory_log import check_advantages, check_tokens
from verl_ext.observe.metrics import METRICS
from verl_ext.observe.viewer import main

# Fixed scheduling: every metric that is not a duration must come out the same.
SETTINGS = ["mas.deterministic=true", "trainer.total_training_steps=4", "trainer.logger=[console,file,tensorboard]"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, str]:
    """One uninterrupted run of 4 steps and its output."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(folder, *SETTINGS, shared=False)


def test_the_output_is_for_a_person(whole):
    _, output = whole
    assert re.search(r"step 4/4  reward [\d.]+  [\d,]+ tok/s  [\d.]+ s .*validation F1 [\d.]+", output), output
    for part in ("Done.", "validation F1", "learning_curve.png", "checkpoint", "metrics.jsonl", "Next:"):
        assert part in output
    assert "verl_ext view runs/mhgpo_tiny --open" in output
    assert "evaluate.model=runs/mhgpo_tiny/global_step_4" in output


def test_what_a_run_leaves(whole):
    run_folder = whole[0] / "runs" / "mhgpo_tiny"
    assert (run_folder / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert (run_folder / "latest_checkpointed_iteration.txt").read_text() == "4"
    assert (run_folder / "global_step_4" / "complete").exists()
    assert [entry["step"] for entry in entries(whole[0])] == [0, 1, 2, 3, 4]


def test_one_optimiser_step_and_all_rows_each_step(whole):
    for metrics in steps(whole[0]):
        assert metrics["update/optimiser_steps"] == 1
        assert (
            metrics["update/rows"] == metrics["sampling/agent_calls"] == metrics["sampling/agent_calls_formula"] == 96
        )
        assert metrics["update/padding_rows"] == 0
        assert metrics["actor/grad_norm"] > 0


def test_every_metric_is_documented_and_reaches_verls_loggers(whole):
    folder, _ = whole
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


@pytest.fixture(scope="module")
def resumed(whole, tmp_path_factory) -> Path:
    """The run again from its checkpoint of step 2, as a kill while the tracker was written leaves it."""
    folder = tmp_path_factory.mktemp("resumed")
    run_again_from(2, whole[0], folder, *SETTINGS, tracker="")
    return folder


def test_a_resumed_run_gives_the_same_metrics(whole, resumed):
    again, once = entries(resumed), entries(whole[0])
    assert [entry["step"] for entry in again] == [0, 1, 2, 3, 4]
    for one, other in zip(again, once, strict=True):
        assert lasting(one) == lasting(other), one["step"]


def test_the_trajectory_log_of_a_resumed_run_has_every_question_once(resumed):
    questions, calls = records(resumed)
    seen = [(line["phase"], line["step"], line["question"]["number"]) for line in questions]
    trained = [("train", step, n) for step in (1, 2, 3, 4) for n in range(4)]
    assert sorted(seen) == sorted(trained + [("val", step, n) for step in (0, 2, 4) for n in range(8)])
    check_tokens(calls)
    train = [call for call in calls if call["phase"] == "train"]
    assert len(train) == 4 * 4 * 12 and all(call["trained"] for call in train)
    check_advantages(train, groups=4 * 4 * 3)
    for call in train:
        assert len(call["parents"]) == min(call["depth"], 1) and call["versions"] == [call["step"] - 1] * 2
    validated: dict[int, set[Any]] = defaultdict(set)
    for line in questions:
        if line["phase"] == "val":
            validated[line["step"]].add(line["question"]["index"])
    assert validated[0] == validated[2] == validated[4], "the same questions each time"
    assert main([str(resumed / "runs" / "mhgpo_tiny")]) == 0


@pytest.mark.slow
def test_a_finished_run_says_so_and_does_not_start_again(whole):
    output = run(whole[0], *SETTINGS, timeout=500)
    assert "complete already" in output and "Started a local Ray instance" not in output
