"""The best checkpoint by validation stays, whatever verl removes and whenever the run is killed."""

from __future__ import annotations

import shutil

import pytest

from tests.trainer.test_checkpoint import checkpoints, content
from tests.trainer.test_recipes import composed
from verl_ext.trainer.preflight.checks import check_multi_agent
from verl_ext.trainer.state import best
from verl_ext.trainer.state.best import BestCheckpoint
from verl_ext.trainer.state.checkpoint import TRACKER, prepare_start

F1 = "val/system/f1"


def saved(folder, step, complete=True):
    """A checkpoint whose weights are its step's number."""
    checkpoints(folder, [step] if complete else [], [] if complete else [step])
    (folder / f"global_step_{step}" / "actor" / "model").write_text(str(step))


def kept(folder):
    """Step -> weights, of what `best` holds."""
    return {path.name: (path / "actor" / "model").read_text() for path in (folder / "best").glob("global_step_*")}


def test_the_best_survives_verls_removal_and_a_restart(tmp_path):
    for step, value in ((1, 0.2), (2, 0.7), (3, 0.7), (4, 0.5)):
        saved(tmp_path, step)
        BestCheckpoint(tmp_path, F1).consider(step, {F1: value})  # each in a process of its own
        shutil.rmtree(tmp_path / f"global_step_{step}" / "actor")
    assert kept(tmp_path) == {"global_step_2": "2"}
    BestCheckpoint(tmp_path, F1).consider(9, {F1: 0.9})  # validated, not saved
    saved(tmp_path, 10, complete=False)
    BestCheckpoint(tmp_path, F1).consider(10, {F1: 0.9})
    assert kept(tmp_path) == {"global_step_2": "2"}


@pytest.mark.parametrize("moment", ["_link", "write_file"])
def test_a_kill_leaves_the_old_best_or_the_new_one(tmp_path, monkeypatch, moment):
    keeper = BestCheckpoint(tmp_path, F1)
    saved(tmp_path, 1)
    keeper.consider(1, {F1: 0.1})
    saved(tmp_path, 2)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(best, moment, killed)
        with pytest.raises(KeyboardInterrupt):
            keeper.consider(2, {F1: 0.2})
    assert kept(tmp_path) == {"global_step_1": "1"}
    keeper.consider(2, {F1: 0.2})  # the restarted run validates its checkpoint again
    assert kept(tmp_path) == {"global_step_2": "2"} and len(list((tmp_path / "best").iterdir())) == 1


def test_what_a_user_keeps_beside_the_best_stays(tmp_path):
    for step, value in ((1, 0.2), (2, 0.7)):
        saved(tmp_path, step)
        BestCheckpoint(tmp_path, F1).consider(step, {F1: value})
        (tmp_path / "best" / "notes.txt").write_text("mine")
        (tmp_path / "best" / "merged").mkdir(exist_ok=True)
    saved(tmp_path, 3)
    BestCheckpoint(tmp_path, F1).consider(3, {F1: 0.9})
    assert {path.name for path in (tmp_path / "best").iterdir()} == {"global_step_3", "notes.txt", "merged"}


def test_training_a_step_again_does_not_write_into_the_best(tmp_path):
    saved(tmp_path, 2)
    BestCheckpoint(tmp_path, F1).consider(2, {F1: 0.7})
    saved(tmp_path, 2)  # after going back to step 1
    (tmp_path / "global_step_2" / "actor" / "model").write_text("other")
    assert kept(tmp_path) == {"global_step_2": "2"}


def test_a_run_can_go_on_from_its_best(tmp_path):
    for step, value in ((2, 0.7), (4, 0.5)):
        saved(tmp_path, step)
        BestCheckpoint(tmp_path, F1).consider(step, {F1: value})
    place = tmp_path / "best" / "global_step_2"
    given = {"resume_mode": "resume_path", "resume_from_path": str(place)}
    config = composed("+recipe=mhgpo_tiny", f"trainer.default_local_dir={tmp_path}")
    config.trainer.update(given)
    prepare_start(config)
    assert kept(tmp_path) == {"global_step_2": "2"} and "previous_1/global_step_4/complete" in content(tmp_path)


def test_what_cannot_be_kept_is_an_error(tmp_path):
    saved(tmp_path, 1)
    with pytest.raises(ValueError, match=r"keep_best=val/system/em is no metric .* others: val/system/f1"):
        BestCheckpoint(tmp_path, "val/system/em").consider(1, {F1: 0.1})
    checkpoints(tmp_path / "elsewhere", [1], weights=False)
    with pytest.raises(ValueError, match="weights of .* are not on the trainer's machine. Remedy"):
        BestCheckpoint(tmp_path / "elsewhere", F1).consider(1, {F1: 0.1})
    with pytest.raises(ValueError, match="needs checkpoints and validations, given trainer.save_freq=-1"):
        check_multi_agent(composed("+recipe=mhgpo_tiny", f"trainer.keep_best={F1}", "trainer.save_freq=-1"))


def test_saving_in_the_background_is_refused_where_no_checkpoint_would_count():
    config = composed("+recipe=mhgpo_tiny", "actor_rollout_ref.actor.checkpoint.async_save=true")
    with pytest.raises(ValueError, match="async_save=true: verl has it for Megatron"):
        best.check_saving(config)
    config.actor_rollout_ref.actor.strategy = "megatron"
    best.check_saving(config)
    config.trainer.keep_best = F1
    with pytest.raises(ValueError, match=f"with trainer.keep_best={F1} nobody would know when"):
        best.check_saving(config)


@pytest.mark.parametrize("resume", ["auto", "resume_path"])
def test_the_best_of_a_discarded_future_does_not_win_over_new_checkpoints(tmp_path, resume):
    for step, value in ((2, 0.1), (4, 0.9)):
        saved(tmp_path, step)
        BestCheckpoint(tmp_path, F1).consider(step, {F1: value})
    given = {"resume_mode": resume, "resume_from_path": str(tmp_path / "global_step_2")}
    config = composed("+recipe=mhgpo_tiny", f"trainer.default_local_dir={tmp_path}")
    config.trainer.update(given)
    (tmp_path / TRACKER).write_text("2")
    prepare_start(config)
    assert "previous_1/best/global_step_4/actor/model" in content(tmp_path)
    saved(tmp_path, 3)
    BestCheckpoint(tmp_path, F1).consider(3, {F1: 0.5})
    assert kept(tmp_path) == {"global_step_3": "3"}
