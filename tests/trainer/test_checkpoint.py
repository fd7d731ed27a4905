from __future__ import annotations

import json

import pytest
from omegaconf import OmegaConf

from verl_ext.observe.runlog import NAME, VALIDATION, LogTail, RunLog, log_name, read_log, series
from verl_ext.trainer.state import checkpoint
from verl_ext.trainer.state.checkpoint import (
    TRACKER,
    begin,
    complete_steps,
    keep_two,
    last_checkpoint,
    lock_run,
    mark_complete,
    next_start,
    prepare_start,
    remove_stale,
)


def checkpoints(folder, complete=(), partial=(), weights=True):
    for step in (*complete, *partial):
        begin(folder, step)
        if weights:
            (folder / f"global_step_{step}" / "actor").mkdir()
        if step in complete:
            mark_complete(folder, step)


def run(folder, resume="auto", **trainer):
    """The configuration of a run in `folder`, as far as its folder depends on it."""
    return OmegaConf.create({"trainer": {"default_local_dir": str(folder), "resume_mode": resume, **trainer}})


def content(folder):
    """Path -> text of all files below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_marking_writes_the_tracker(tmp_path):
    checkpoints(tmp_path, [2, 4])
    assert (tmp_path / TRACKER).read_text() == "4"
    assert complete_steps(tmp_path) == [2, 4]


@pytest.mark.parametrize(
    ("complete", "partial", "removed", "tracker", "continued"),
    [
        *[([2, 10], [11], [], broken, 10) for broken in ("", "4\x00", "none", "11", None)],  # the newest complete
        ([2, 4], [], [2], "4", 4),
        ([2, 4], [], [], "2", 2),
        ([], [], [], None, None),
        *[([], [3], [], begun, None) for begun in ("", "3", None)],  # a kill while the first one was written
    ],
)
def test_a_run_continues_from_the_tracked_or_the_last_complete_checkpoint(
    tmp_path, complete, partial, removed, tracker, continued
):
    checkpoints(tmp_path, complete, partial)
    for step in removed:
        (tmp_path / f"global_step_{step}" / "actor").rmdir()
    (tmp_path / TRACKER).unlink(missing_ok=True)
    if tracker is not None:
        (tmp_path / TRACKER).write_text(tracker)
    assert last_checkpoint(tmp_path) == continued
    prepare_start(run(tmp_path))
    assert ((tmp_path / TRACKER).read_text() if (tmp_path / TRACKER).exists() else None) == (
        None if continued is None else str(continued)
    )


@pytest.mark.parametrize("tracker", ["4", ""])
def test_weights_on_the_disks_of_other_machines_are_not_taken_for_removed(tmp_path, tracker):
    checkpoints(tmp_path, [2, 4], weights=False)
    (tmp_path / "global_step_4" / "memory").mkdir()
    (tmp_path / TRACKER).write_text(tracker)
    assert prepare_start(run(tmp_path)) is None
    remove_stale(tmp_path, "memory")
    assert (tmp_path / TRACKER).read_text() == "4" and (tmp_path / "global_step_4" / "memory").is_dir()


def lost_weights(folder):
    checkpoints(folder, [4])
    (folder / "global_step_4" / "actor").rmdir()


def lost_checkpoint(folder):
    (folder / TRACKER).write_text("4")


def lost_tracker(folder):
    (folder / "global_step_4" / "actor").mkdir(parents=True)  # of stock verl, which marks nothing


def lost_last(folder):
    checkpoints(folder, [2, 4])
    (folder / TRACKER).write_text("6")  # and nothing of it is left


@pytest.mark.parametrize(
    ("lose", "words"),
    [
        (
            lost_last,
            "'6' in latest_checkpointed_iteration.txt, and\n  global_step_2: complete\n  global_step_4: complete",
        ),
        (lost_weights, "'4' in latest_checkpointed_iteration.txt, and\n  global_step_4: its actor is missing"),
        (lost_checkpoint, "'4' in latest_checkpointed_iteration.txt, and\n  there is no global_step_N"),
        (lost_tracker, "there is no latest_checkpointed_iteration.txt, and\n  global_step_4: without the file"),
    ],
)
def test_a_checkpoint_that_is_not_found_is_an_error_and_nothing_is_lost(tmp_path, lose, words):
    lose(tmp_path)
    RunLog(tmp_path).write(4, {"a": 1})
    before = content(tmp_path)
    with pytest.raises(ValueError, match=f"{words}.*\nRemedy: .*resume_from_path.*resume_mode=disable"):
        prepare_start(run(tmp_path))
    assert content(tmp_path) == before
    assert prepare_start(run(tmp_path, "disable")) == tmp_path / "previous_1"
    kept = {name: text for name, text in content(tmp_path / "previous_1").items()}
    assert kept == before and [path.name for path in tmp_path.iterdir()] == ["previous_1"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [({"max_actor_ckpt_to_keep": 1}, 2), ({"max_actor_ckpt_to_keep": 3}, 3), ({"max_actor_ckpt_to_keep": None}, None)]
    + [({"max_actor_ckpt_to_keep": None, "remove_previous_ckpt_in_save": True}, 2)],
)
def test_verl_does_not_remove_the_last_checkpoint_before_the_next_is_complete(tmp_path, given, kept):
    config = run(tmp_path, max_critic_ckpt_to_keep=None, **given)
    keep_two(config)
    assert config.trainer.max_actor_ckpt_to_keep == kept and not config.trainer.remove_previous_ckpt_in_save


def test_a_checkpoint_of_stock_verl_is_continued_as_its_tracker_says(tmp_path):
    lost_tracker(tmp_path)
    (tmp_path / TRACKER).write_text("4")
    assert last_checkpoint(tmp_path) == 4


def test_two_runs_do_not_share_a_folder(tmp_path):
    with lock_run(run(tmp_path)) as lock:
        with pytest.raises(ValueError, match=f"another process trains into {tmp_path}. Remedy"):
            lock_run(run(tmp_path))
        assert lock_run(run(tmp_path, val_only=True)) is None and not lock.closed
    lock_run(run(tmp_path)).close()


def test_going_back_to_an_earlier_step_keeps_the_later_ones_and_the_log(tmp_path):
    checkpoints(tmp_path / "run", [2, 10])
    RunLog(tmp_path / "run").write(10, {"a": 1})
    back = {"resume": "resume_path", "resume_from_path": str(tmp_path / "run" / "global_step_2")}
    assert prepare_start(run(tmp_path / "run", **back)) == tmp_path / "run" / "previous_1"
    assert {path.name for path in (tmp_path / "run" / "previous_1").iterdir()} == {"global_step_10", NAME}
    assert prepare_start(run(tmp_path / "run", **back)) is None and complete_steps(tmp_path / "run") == [2]
    checkpoints(tmp_path / "other", [4])
    prepare_start(run(tmp_path / "other", **back))
    assert complete_steps(tmp_path / "other") == [] and complete_steps(tmp_path / "other" / "previous_1") == [4]


@pytest.mark.parametrize("place", ["previous_1", "other_run"])
def test_a_checkpoint_of_an_earlier_run_below_the_folder_is_of_another_run(tmp_path, place):
    checkpoints(tmp_path / place, [2])
    checkpoints(tmp_path, [1])
    RunLog(tmp_path).write(1, {"a": 1})
    source = tmp_path / place / "global_step_2"
    kept = prepare_start(run(tmp_path, "resume_path", resume_from_path=str(source)))
    assert {path.name for path in kept.iterdir()} == {"global_step_1", NAME, TRACKER}
    assert (source / "complete").exists() and not (tmp_path / NAME).exists()


def test_going_back_to_a_checkpoint_on_another_disk_leaves_its_link(tmp_path):
    folder = tmp_path / "run"
    checkpoints(folder, [2, 4])
    (folder / "global_step_2").rename(tmp_path / "moved")
    (folder / "global_step_2").symlink_to(tmp_path / "moved")
    kept = prepare_start(run(folder, "resume_path", resume_from_path=str(folder / "global_step_2")))
    assert (folder / "global_step_2" / "complete").exists()
    assert [path.name for path in kept.iterdir()] == ["global_step_4"]


def test_where_the_same_command_begins_depends_on_how_this_one_was_resumed(tmp_path):
    source, last = "other/global_step_5", f"goes on from {tmp_path / 'global_step_4'}"
    assert next_start(run(tmp_path).trainer) == "starts afresh: it has no checkpoint yet"
    checkpoints(tmp_path, [2, 4])
    assert next_start(run(tmp_path).trainer) == last
    for mode, begins in (("disable", "starts afresh"), ("resume_path", f"begins again from {source}")):
        trainer = run(tmp_path, mode, resume_from_path=source).trainer
        assert next_start(trainer) == f"{begins} (trainer.resume_mode={mode}); with auto it {last}"
    (tmp_path / "global_step_4" / "actor").rename(tmp_path / "moved")
    assert next_start(run(tmp_path).trainer) == f"is refused until a complete checkpoint is in {tmp_path}"
    assert next_start(run(tmp_path, "disable").trainer) == "starts afresh (trainer.resume_mode=disable)"


def test_saving_a_step_again_leaves_the_old_checkpoint_of_it(tmp_path):
    checkpoints(tmp_path, [2])
    (tmp_path / "global_step_2" / "actor" / "model").write_text("old")
    begin(tmp_path, 2)  # of a run that went back to an earlier step
    assert last_checkpoint(tmp_path) is None
    assert content(tmp_path / "previous_1" / "global_step_2")["actor/model"] == "old"


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


def test_the_log_of_an_earlier_run_is_kept(tmp_path):
    for number in (1, 2):
        log = RunLog(tmp_path)
        log.start(0, 3)
        log.write(1, {"a": number})
        with pytest.raises(ValueError, match=r"log of an earlier run up to step 1, .*Remedy"):
            RunLog(tmp_path).start(0, 3)
        assert prepare_start(run(tmp_path)) == tmp_path / f"previous_{number}"
    assert [read_log(tmp_path / f"previous_{n}" / NAME)[0]["metrics"] for n in (1, 2)] == [{"a": 1}, {"a": 2}]


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
    assert log_name(run(tmp_path)) == NAME
    assert log_name(run(tmp_path, val_only=True)) == VALIDATION != NAME


def test_what_an_algorithm_keeps_is_in_the_checkpoint(tmp_path):
    checkpoint.write_state(tmp_path, 3, {})
    assert not (tmp_path / "global_step_3").exists(), "nothing to keep"
    checkpoint.write_state(tmp_path, 3, {"mean_return": 0.1 + 0.2})
    assert checkpoint.read_state(tmp_path / "global_step_3") == {"mean_return": 0.1 + 0.2}
    assert checkpoint.read_state(tmp_path / "global_step_4") == {}
