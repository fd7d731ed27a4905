"""What a run must have in common with the checkpoint that it continues from."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from tests.trainer.test_checkpoint import checkpoints
from verl_ext.trainer.state.checkpoint import TRACKER
from verl_ext.trainer.state.run_settings import FREE, check_same_run, settings_of


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
