"""The warning that decisions have collapsed: its rule step by step, once while the run goes on, and at its end."""

from __future__ import annotations

import pytest

from verl_ext.observe.collapse import SHARE, STEPS, advice, collapsed
from verl_ext.observe.progress import Progress
from verl_ext.observe.runlog import NAME, RunLog
from verl_ext.observe.summary import print_summary


def on_one_path(agent="boss", **other):
    found = {"top_path": 1.0, "options": 3.0, "length": 2.0} | other
    return {f"decisions/{agent}/{name}": value for name, value in found.items()} | {"sampling/questions": 8}


def run_of(*steps):
    return [{"step": number, "metrics": metrics} for number, metrics in enumerate(steps, 1)]


ON, OFF, VALIDATION = on_one_path(), on_one_path(top_path=SHARE - 0.01), {"val/decisions/boss/top_path": 1.0}
ONE_QUESTION = {"sampling/questions": 1}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([ON] * (STEPS - 1), []),
        ([ON] * STEPS, ["boss"]),
        ([on_one_path(top_path=SHARE)] * STEPS, ["boss"]),
        ([ON] * (STEPS - 1) + [OFF] + [ON] * (STEPS - 1), []),
        ([ON] * STEPS + [OFF], []),
        ([OFF] + [ON] * 2 + [VALIDATION] + [ON] * (STEPS - 2), ["boss"]),
        ([VALIDATION] * STEPS, []),
        ([on_one_path(top_path=None)] * STEPS, []),
        ([on_one_path("a") | on_one_path("b")] * STEPS, ["a", "b"]),
        # There must be something to choose, and something to choose by.
        ([on_one_path(options=2.0)] * STEPS, []),
        ([on_one_path(options=2.1)] * STEPS, ["boss"]),
        ([on_one_path(options=None)] * STEPS, []),
        ([on_one_path(length=1.0)] * STEPS, ["boss"]),  # several questions, and one answer to all
        ([on_one_path(length=1.0) | ONE_QUESTION] * STEPS, []),
        ([on_one_path(length=1.5) | ONE_QUESTION] * STEPS, ["boss"]),
    ],
)
def test_several_steps_in_a_row_and_training_alone(steps, expected):
    assert collapsed(run_of(*steps)) == expected


def said(capsys):
    return capsys.readouterr().out.count("boss has collapsed")


def test_progress_says_it_once_and_again_after_a_resume(tmp_path, capsys):
    log = RunLog(tmp_path, NAME)
    log.start(0, 20)
    progress = Progress(tmp_path, "f1")
    for step in range(1, STEPS):
        log.write(step, ON)
    progress._show_new()
    assert said(capsys) == 0
    for step in range(STEPS, STEPS + 4):
        log.write(step, ON)
        progress._show_new()
    assert said(capsys) == 1
    log.write(STEPS + 4, OFF)
    # A resume after step 2: what came later, the step off the path included, is made again and does not count.
    log.path.unlink()
    log.start(0, 20)
    for step, metrics in enumerate([ON, ON, ON, OFF, OFF], 1):
        log.write(step, metrics)
    resumed = Progress(tmp_path, "f1")
    log.start(3, 20)
    for step in range(4, STEPS):
        log.write(step, ON)
    resumed._show_new()
    assert said(capsys) == 0
    log.write(STEPS, ON)
    resumed._show_new()
    assert said(capsys) == 1


def test_the_summary_says_it_if_it_is_so_at_the_end(tmp_path, capsys):
    log = RunLog(tmp_path, NAME)
    log.start(0, 20)
    for step in range(1, STEPS + 1):
        log.write(step, ON)
    print_summary(log.path, "f1", "is", [])
    output = capsys.readouterr().out
    assert "\n".join(["", *advice("boss"), ""]) in output and "actor.entropy_coeff" in output
    log.write(STEPS + 1, OFF)
    print_summary(log.path, "f1", "is", [])
    assert said(capsys) == 0
