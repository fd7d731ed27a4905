"""The comparison of a killed run with an uninterrupted one finds what is missing, not only what differs."""

from __future__ import annotations

import pytest

from tests.bench.killed_runs import Case, Run
from tests.bench.kills import differs
from verl_ext.observe.record import Record
from verl_ext.observe.runlog import NAME
from verl_ext.storage.jsonl import append
from verl_ext.trainer.state.checkpoint import mark_complete, place_of


def made(folder, saved, lines, trajectories):
    """A run with a checkpoint and a question in the trajectory log per step, and these lines in its log."""
    run = Run(Case("tiny", ()), folder, folder)
    for step in range(1, saved + 1):
        place_of(run.place, step).mkdir(parents=True)
        mark_complete(run.place, step)
    append(run.place / NAME, lines)
    (run.place / "trajectories").mkdir()
    empty = {name: [] for name in Record.__required_keys__}
    of_steps = [empty | {"phase": "train", "step": step, "question": {}} for step in trajectories]
    append(run.place / "trajectories" / "000001.jsonl", of_steps)
    return run


def line(step, partial=False, **metrics):
    marks = {"partial": True} if partial else {}
    return {"step": step, "time": 0.0, "metrics": {"system/reward": 0.1 * step, "timing_s/step": 1.0} | metrics} | marks


VALIDATED = {"val/system/reward": 0.5}
UNTIL = [line(1), line(2)]


@pytest.mark.parametrize(
    "lines, trajectories, ended, found",
    [
        ([*UNTIL, line(3, **VALIDATED)], [1, 2, 3], True, []),
        ([*UNTIL, line(3, partial=True)], [1, 2, 3], False, []),
        ([*UNTIL, line(3, partial=True)], [1, 2, 3], True, ["no metrics of step 3"]),
        ([*UNTIL, line(3)], [1, 2, 3], False, ["metrics of step 3"]),
        ([*UNTIL, line(3, partial=True, **{"system/reward": 0.0})], [1, 2, 3], False, ["partial metrics of step 3"]),
        ([line(1), line(2, partial=True), line(3, **VALIDATED)], [1, 2, 3], False, ["no metrics of step 2"]),
        (UNTIL, [1, 2, 3], False, ["no metrics of step 3"]),
        ([*UNTIL, line(3, **VALIDATED)], [1, 3], False, ["trajectories of train 2"]),
        ([*UNTIL, line(3, **VALIDATED)], [1, 2, 3, 3], True, ["trajectories of train 3"]),
    ],
)
def test_a_missing_or_partial_line_is_told(tmp_path, lines, trajectories, ended, found):
    whole = made(tmp_path / "whole", 4, [*UNTIL, line(3, **VALIDATED), line(4)], [1, 2, 3, 4])
    run = made(tmp_path / "killed", 3, lines, trajectories)
    assert differs(run, whole, ended) == found
