from __future__ import annotations

import json

import pytest
from omegaconf import OmegaConf

from verl_ext.observe.runlog import NAME, VALIDATION, LogTail, RunLog, log_name, read_log, series
from verl_ext.trainer.state import checkpoint
from verl_ext.trainer.state.checkpoint import (
    TRACKER,
    check_same_run,
    complete_steps,
    mark_complete,
    remove_stale,
    repair_tracker,
)


def checkpoints(folder, complete, partial=()):
    for step in (*complete, *partial):
        (folder / f"global_step_{step}" / "actor").mkdir(parents=True)
    for step in complete:
        mark_complete(folder, step)


def test_marking_writes_the_tracker(tmp_path):
    checkpoints(tmp_path, [2, 4])
    assert (tmp_path / TRACKER).read_text() == "4"
    assert complete_steps(tmp_path) == [2, 4]


@pytest.mark.parametrize(
    ("complete", "partial", "removed", "tracker", "repaired"),
    [
        *[([2, 10], [11], [], broken, "10") for broken in ("", "4\x00", "none", "12")],  # the newest complete one
        ([2, 4, 6], [7], [2, 6], "6", "4"),  # verl has removed its actor
        ([2, 4], [], [2, 4], "4", None),
        ([2, 4], [], [], "2", "2"),
        ([], [3], [], "", None),
    ],
)
def test_a_broken_tracker_is_repaired(tmp_path, complete, partial, removed, tracker, repaired):
    checkpoints(tmp_path, complete, partial)
    for step in removed:
        (tmp_path / f"global_step_{step}" / "actor").rmdir()
    (tmp_path / TRACKER).write_text(tracker)
    repair_tracker(tmp_path)
    assert ((tmp_path / TRACKER).read_text() if (tmp_path / TRACKER).exists() else None) == repaired


def test_parts_of_a_checkpoint_go_with_the_weights_that_were_removed(tmp_path):
    checkpoints(tmp_path, [1, 2])
    for step in (1, 2):
        (tmp_path / f"global_step_{step}" / "part").mkdir()
    (tmp_path / "global_step_1" / "actor").rmdir()  # as verl does, which keeps the rest of the folder
    remove_stale(tmp_path, "part")
    assert [path.parent.name for path in tmp_path.glob("*/part")] == ["global_step_2"]


def test_the_log_forgets_steps_after_the_restored_one(tmp_path):
    log = RunLog(tmp_path)
    log.start(0, 10)
    for step in range(5):
        log.write(step, {"a": step, "text": "left out", "b": float("nan")})
    with open(tmp_path / NAME, "a") as file:
        file.write('{"step": 5, "metr')  # a kill in the middle of a line
    assert [entry["step"] for entry in read_log(tmp_path / NAME)] == [0, 1, 2, 3, 4]
    RunLog(tmp_path).start(2, 10)
    assert [json.loads(line)["step"] for line in (tmp_path / NAME).read_text().splitlines()] == [0, 1, 2]
    assert series(read_log(tmp_path / NAME), "a") == ([0, 1, 2], [0, 1, 2])
    assert series(read_log(tmp_path / NAME), "b") == ([], [])


def test_a_fresh_start_empties_the_log(tmp_path):
    log = RunLog(tmp_path)
    log.start(0, 3)
    log.write(1, {"a": 1})
    RunLog(tmp_path).start(0, 3)
    assert read_log(tmp_path / NAME) == []


def test_a_tail_gives_each_entry_once_and_everything_of_a_log_written_anew(tmp_path):
    tail, log = LogTail(tmp_path / NAME), RunLog(tmp_path)
    assert tail.news() == []
    log.start(0, 3)
    log.write(1, {"a": 1})
    log.write(2, {"a": 2})
    assert [entry["step"] for entry in tail.news()] == [1, 2]
    assert tail.news() == []
    with open(tmp_path / NAME, "a") as file:
        file.write('{"step": 3, "metr')
        file.flush()
        assert tail.news() == []
        file.write('ics": {}}\nnonsense\n')
    assert tail.news() == [{"step": 3, "metrics": {}}]
    RunLog(tmp_path).start(1, 3)  # a resume
    assert [entry["step"] for entry in tail.news()] == [1]
    log.write(2, {"a": 5})
    assert [entry["metrics"] for entry in tail.news()] == [{"a": 5}]


def test_evaluating_a_checkpoint_has_a_log_of_its_own(tmp_path):
    assert log_name(settings(tmp_path)) == NAME
    assert log_name(settings(tmp_path, val_only=True)) == VALIDATION != NAME


def settings(folder, strategy="fof", resume="auto", steps=3, lr=1e-4, **trainer):
    trainer = {"default_local_dir": str(folder), "resume_mode": resume, "total_training_steps": steps, **trainer}
    data = {"train_files": ["a"], "train_batch_size": 4}
    actor = {"actor": {"optim": {"lr": lr}}}
    return OmegaConf.create(
        {"trainer": trainer, "mas": {"sampling": {"strategy": strategy}}, "data": data, "actor_rollout_ref": actor}
    )


def test_a_run_of_other_settings_is_not_continued(tmp_path):
    check_same_run(settings(tmp_path))
    check_same_run(settings(tmp_path, "rr"))  # nothing trained yet
    checkpoints(tmp_path, [2])
    check_same_run(settings(tmp_path, "rr", steps=9))
    with pytest.raises(ValueError, match="mas.sampling.strategy: rr there, is here"):
        check_same_run(settings(tmp_path, "is"))
    with pytest.raises(ValueError, match="actor.optim.lr: 0.0001 there, 0.001 here"):
        check_same_run(settings(tmp_path, "rr", lr=1e-3))
    check_same_run(settings(tmp_path, "rr"))  # the refusal changed nothing
    check_same_run(settings(tmp_path, "is", val_only=True))  # trains nothing


@pytest.mark.parametrize("explicit", ["disable", "resume_path"])
def test_each_checkpoint_knows_its_own_settings(tmp_path, explicit):
    check_same_run(settings(tmp_path, "rr"))
    checkpoints(tmp_path, [2])
    # Started afresh in the same folder with other settings, and killed before its first checkpoint.
    check_same_run(settings(tmp_path, "is", resume=explicit))
    with pytest.raises(ValueError, match="rr there, is here.*\n.*resume_from_path"):
        check_same_run(settings(tmp_path, "is"))
    check_same_run(settings(tmp_path, "is", resume=explicit))
    checkpoints(tmp_path, [4])
    check_same_run(settings(tmp_path, "is"))
    with pytest.raises(ValueError, match="is there, rr here"):
        check_same_run(settings(tmp_path, "rr"))
    (tmp_path / TRACKER).write_text("")  # a kill while it was written: the newest complete one counts
    with pytest.raises(ValueError, match="is there, rr here"):
        check_same_run(settings(tmp_path, "rr"))


@pytest.mark.parametrize("says", ["{}", "2"])
def test_a_checkpoint_that_does_not_say_is_continued(tmp_path, says):
    checkpoints(tmp_path, [2])
    (tmp_path / "global_step_2" / "complete").write_text(says)
    check_same_run(settings(tmp_path, "rr"))


def test_what_an_algorithm_keeps_is_in_the_checkpoint(tmp_path):
    checkpoint.write_state(tmp_path, 3, {})
    assert not (tmp_path / "global_step_3").exists(), "nothing to keep"
    checkpoint.write_state(tmp_path, 3, {"mean_return": 0.1 + 0.2})
    assert checkpoint.read_state(tmp_path / "global_step_3") == {"mean_return": 0.1 + 0.2}
    assert checkpoint.read_state(tmp_path / "global_step_4") == {}
