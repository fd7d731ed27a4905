"""Mode mas_colocate_async with rollout workers in processes of their own: partial rollouts, and their log."""

from __future__ import annotations

import os
from typing import Any

from tests.end_to_end.running import entries, records, run
from tests.end_to_end.trajectory_log import check_advantages, check_tokens
from verl_ext.tools.retrieval import SearchTool
from verl_ext.tools.retrieval.search import search_tool

SPANS = "training/off_policy/trajectory_spans/max"
OLDEST = "training/off_policy/trajectory_staleness_worst/max"
STEPS = (1, 2, 3, 4, 5)


def search(**settings: Any) -> SearchTool:
    """The search tool of the recipe. Each index that it builds is a line of the file `built`."""
    with open("built", "a") as file:
        file.write(f"{os.getpid()}\n")
    return search_tool(**settings)


def test_training_goes_on_with_partial_rollouts(tmp_path):
    run(
        tmp_path,
        "trainer.v1.trainer_mode=mas_colocate_async",
        "trainer.v1.colocate_async.num_warmup_batches=1",
        "actor_rollout_ref.rollout.agent.num_workers=2",
        "mas.tools.search._target_=tests.end_to_end.test_async.search",
        "+mas.tools.search.once_per_node=true",
        # The head start is used up after one step; from then on weights change under unfinished trajectories.
        f"trainer.total_training_steps={len(STEPS)}",
        "trainer.test_freq=-1",
        "mas.trajectory_log.file_mb=0.1",
        "mas.trajectory_log.files=100",
    )
    assert len((tmp_path / "built").read_text().splitlines()) == 1, "once for both workers"
    log = {entry["step"]: entry["metrics"] for entry in entries(tmp_path) if entry["step"] > 0}
    assert tuple(log) == STEPS
    for metrics in log.values():
        assert metrics["update/rows"] == 96 and metrics["sampling/failed_trajectories"] == 0
    # Some rows have an output that was begun under one version of the weights and finished under another.
    assert max(metrics[SPANS] for metrics in log.values()) >= 2
    assert max(metrics[OLDEST] for metrics in log.values()) >= 1

    questions, calls = records(tmp_path)
    trained = [(q["step"], q["question"]["number"]) for q in questions if q["phase"] == "train"]
    assert sorted(trained) == [(step, number) for step in STEPS for number in range(4)]
    check_tokens(calls)
    train = [call for call in calls if call["phase"] == "train"]
    assert len(train) == len(STEPS) * 4 * 12 and all(call["trained"] for call in train)
    check_advantages(train, groups=len(STEPS) * 4 * 3)
    sizes = [path.stat().st_size for path in (tmp_path / "runs" / "mhgpo_tiny" / "trajectories").iterdir()]
    assert len(sizes) > 1 and max(sizes) <= 100_000
