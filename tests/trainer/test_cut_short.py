"""A run killed between the checkpoint of a step and the end of that step, which is where verl validates."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from omegaconf import OmegaConf

from verl_ext.observe.error_log import ErrorLog
from verl_ext.observe.runlog import NAME, LogTail, RunLog, read_log
from verl_ext.observe.summary import finished_already
from verl_ext.trainer.budget import Budget
from verl_ext.trainer.sections import BudgetSection
from verl_ext.trainer.state.best import BestCheckpoint
from verl_ext.trainer.state.run_state import RunState
from verl_ext.trainer.step import Step
from verl_ext.trainer.trainer import MultiAgentTrainer


class Upstream:
    """Stands for verl's trainer, whose workers take a minute to start: what it does at these places."""

    def _load_checkpoint(self):
        tracker = Path(self.config.trainer.default_local_dir) / "latest_checkpointed_iteration.txt"
        self.global_steps = int(tracker.read_text()) if tracker.exists() else 0

    def _save_checkpoint(self):
        self.done.append("saved")
        folder = Path(self.config.trainer.default_local_dir)
        (folder / f"global_step_{self.global_steps}" / "actor").mkdir(parents=True)
        (folder / "latest_checkpointed_iteration.txt").write_text(str(self.global_steps))

    def _validate(self):
        return {"val/system/f1": 0.1 * self.global_steps}

    def on_step_end(self):
        self.done.append("engine wakes")

    def _compute_metrics(self, batch, metrics, timing_raw):
        metrics["timing_s/step"] = 1.0


def run_state(config, budget):
    """The state of a run whose algorithm, memory, heads and trajectory log keep nothing."""
    state = RunState.__new__(RunState)
    state.config, state.folder, state._unfinished = config, Path(config.trainer.default_local_dir), None
    state.run_log, state.error_log, state.budget = RunLog(state.folder), ErrorLog(state.folder), budget
    state.trajectories, state.memory, state.heads = Mock(), Mock(parts=()), Mock(parts=())
    state.algorithm = SimpleNamespace(state={}, measured={})
    state.best = BestCheckpoint(state.folder, config.trainer.get("keep_best"))
    return state


class Trainer(MultiAgentTrainer, Upstream):
    def __init__(self, folder, total=4, **limits):
        trainer = {"default_local_dir": str(folder), "resume_mode": "auto", "total_training_steps": total}
        actor = {"checkpoint": {}}
        self.config = OmegaConf.create(
            {
                "trainer": trainer | {"test_freq": 1, "save_freq": 1},
                "mas": {"tools": {}},
                "actor_rollout_ref": {"actor": actor},
            }
        )
        self.total_training_steps, self.done = total, []
        self.state, self.now = run_state(self.config, Budget(BudgetSection(**limits))), Step()
        self.agent_loop_manager = Mock(take_stats=lambda uids: [], take_tool_counts=dict)
        self.on_validate_begin = self.on_validate_end = lambda: None
        self._load_checkpoint()
        self._validate()

    def step(self, killed=False):
        """verl's order: rows, checkpoint, validation, metrics."""
        self.global_steps += 1
        metrics = {}
        self.now = Step(self.global_steps, metrics={"sampling/generated_tokens": 100, "sampling/questions": 8})
        self.now.limit_reached = self.state.budget.spend(self.now.metrics)
        if self.config.trainer.save_freq == 1:
            self._save_checkpoint()
        self.on_step_end()
        if killed:
            return
        metrics |= self._validate()
        self._compute_metrics(SimpleNamespace(), metrics, {})


@pytest.fixture
def killed(tmp_path):
    trainer = Trainer(tmp_path)
    for _ in range(3):
        trainer.step()
    trainer.step(killed=True)
    return tmp_path


def test_the_step_is_counted_and_its_validation_made_up_for(killed):
    assert [bool(entry.get("partial")) for entry in read_log(killed / NAME)] == [False] * 4 + [True]
    trainer = Trainer(killed, total=5)
    assert trainer.state.budget.used == {"generated_tokens": 400, "questions": 32}
    trainer.step()
    log = read_log(killed / NAME)
    assert [entry["step"] for entry in log] == [0, 1, 2, 3, 4, 5] and not any(entry.get("partial") for entry in log)
    assert [entry["metrics"]["val/system/f1"] for entry in log] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert [entry["metrics"].get("budget/generated_tokens") for entry in log] == [None, 100, 200, 300, 400, 500]


def test_a_last_step_that_was_cut_short_is_not_a_finished_run(killed):
    config = OmegaConf.create({"trainer": {"resume_mode": "auto", "total_training_steps": 4}})
    assert not finished_already(killed, config)
    Trainer(killed)  # makes up for the validation
    assert finished_already(killed, config)


def test_progress_sees_a_step_once(tmp_path):
    tail, trainer = LogTail(tmp_path / NAME), Trainer(tmp_path)
    trainer.step(killed=True)
    assert [entry["step"] for entry in tail.news()] == [0]
    Trainer(tmp_path).step()
    assert [entry["step"] for entry in tail.news()] == [0, 1, 2]


def test_a_limit_that_the_step_reached_ends_the_resumed_run(tmp_path):
    trainer = Trainer(tmp_path, total=9, generated_tokens=150)
    trainer.step()
    trainer.step(killed=True)
    resumed = Trainer(tmp_path, total=9, generated_tokens=150)
    assert resumed.total_training_steps == 2 and resumed.state.budget.exhausted
    assert read_log(tmp_path / NAME)[-1]["metrics"]["val/system/f1"] == pytest.approx(0.2)


def test_the_last_step_of_a_budget_is_saved_while_the_engine_sleeps(tmp_path):
    trainer = Trainer(tmp_path, total=9, generated_tokens=150)
    trainer.config.trainer.save_freq = 20
    trainer.step()
    trainer.step()
    assert trainer.done == ["engine wakes", "saved", "engine wakes"] and trainer.total_training_steps == 2
    assert Trainer(tmp_path, total=9, generated_tokens=150).global_steps == 2


def test_a_checkpoint_without_a_part_of_the_run_is_refused_unless_it_is_named(killed):
    config = OmegaConf.create({"trainer": {"default_local_dir": str(killed), "resume_mode": "auto"}})
    state = run_state(config, Budget(BudgetSection()))
    state.memory.parts = ("memory",)
    log = (killed / NAME).read_bytes()
    with pytest.raises(ValueError, match=r"global_step_4 lacks memory.*Remedy: .*resume_mode=resume_path"):
        state.start(4, 5)
    assert (killed / NAME).read_bytes() == log
    config.trainer.update({"resume_mode": "resume_path", "resume_from_path": str(killed / "global_step_4")})
    state.start(4, 5)
