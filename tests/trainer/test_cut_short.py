"""A run killed between the checkpoint of a step and the end of that step, which is where verl validates."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from omegaconf import OmegaConf

from tests.end_to_end.running import lasting
from verl_ext.observe.error_log import ErrorLog
from verl_ext.observe.runlog import NAME, LogTail, RunLog, read_log
from verl_ext.observe.summary import finished_already
from verl_ext.trainer.budget import Budget
from verl_ext.trainer.sections import BudgetSection
from verl_ext.trainer.state.best import BestCheckpoint
from verl_ext.trainer.state.checkpoint import last_checkpoint
from verl_ext.trainer.state.run_state import RunState
from verl_ext.trainer.step import Step
from verl_ext.trainer.trainer import MultiAgentTrainer


@pytest.fixture(autouse=True)
def unwatched(monkeypatch):
    """No Ray actors to look at or to replace, and no rows in a queue: these have tests of their own."""
    monkeypatch.setattr("verl_ext.trainer.state.waiting.clear_trained", lambda: 0)
    monkeypatch.setattr("verl_ext.trainer.ranks.watched", lambda *_: nullcontext())
    monkeypatch.setattr("verl_ext.trainer.nodes.between_polls", lambda *_: nullcontext())
    monkeypatch.setattr("verl_ext.trainer.ranks.rollout_servers", lambda _: {})
    group = SimpleNamespace(_workers=[])
    monkeypatch.setattr("verl_ext.trainer.trainer.MultiAgentTrainer.actor_rollout_wg", group, raising=False)
    monkeypatch.setattr("verl_ext.trainer.trainer.MultiAgentTrainer.replay_buffer", None, raising=False)


class Upstream:
    """Stands for verl's trainer, whose workers take a minute to start: what it does at these places."""

    def _load_checkpoint(self):
        tracker = Path(self.config.trainer.default_local_dir) / "latest_checkpointed_iteration.txt"
        self.global_steps = int(tracker.read_text()) if tracker.exists() else 0

    def step(self, metrics, timing_raw):
        metrics["actor/grad_norm"] = 0.5
        return SimpleNamespace()

    def _save_checkpoint(self):
        self.done.append("saved")
        folder = Path(self.config.trainer.default_local_dir)
        (folder / f"global_step_{self.global_steps}" / "actor").mkdir(parents=True)
        (folder / "latest_checkpointed_iteration.txt").write_text(str(self.global_steps))

    def _rollout_server_managers(self):
        return []

    def _validate(self):
        return {"val/system/f1": 0.1 * self.global_steps}

    def on_step_end(self):
        self.done.append("engine wakes")

    def _compute_metrics(self, batch, metrics, timing_raw, global_steps, epoch):
        metrics |= {"timing_s/step": timing_raw["step"], "training/global_step": global_steps}

    def fit(self, agent_loop_manager):
        if self.config.trainer.val_before_train:
            self._validate()


def run_state(config, budget):
    """The state of a run whose algorithm, memory, heads and trajectory log keep nothing."""
    state = RunState.__new__(RunState)
    state.config, state.folder, state._unfinished = config, Path(config.trainer.default_local_dir), None
    state.run_log, state.error_log, state.budget = RunLog(state.folder), ErrorLog(state.folder), budget
    state.trajectories, state.memory, state.heads = Mock(), Mock(parts=()), Mock(parts=())
    state.oversampling = Mock(parts=())
    state.algorithm = SimpleNamespace(state={}, measured={})
    state.best = BestCheckpoint(state.folder, config.trainer.get("keep_best"))
    return state


class Trainer(MultiAgentTrainer, Upstream):
    def __new__(cls, *args, **kwargs):
        return object.__new__(cls)

    def __init__(self, folder, total=4, test_freq=1, before=True, **limits):
        trainer = {"default_local_dir": str(folder), "resume_mode": "auto", "total_training_steps": total}
        actor = {"checkpoint": {}}
        self.config = OmegaConf.create(
            {
                "trainer": trainer | {"test_freq": test_freq, "save_freq": 1, "val_before_train": before},
                "mas": {"tools": {}},
                "actor_rollout_ref": {"actor": actor, "rollout": {}},
            }
        )
        self.total_training_steps, self.done = total, []
        self.state, self.now = run_state(self.config, Budget(BudgetSection(**limits))), Step()
        self.agent_loop_manager = Mock(take_stats=lambda uids: [], take_tool_counts=dict, waiting=dict)
        self.on_validate_begin = self.on_validate_end = lambda: None
        self.steps_per_epoch, self.mas = 10, Mock()
        self._load_checkpoint()
        self.fit(self.agent_loop_manager)

    def train(self, killed=False):
        """verl's order: rows, checkpoint, validation, metrics."""
        self.global_steps += 1
        metrics, self.timing_raw = {}, {}
        batch = self.step(metrics, self.timing_raw)
        self.now = Step(self.global_steps, metrics={"sampling/generated_tokens": 100, "sampling/questions": 8})
        self.now.limit_reached = self.state.budget.spend(self.now.metrics)
        if self.config.trainer.save_freq == 1:
            self._save_checkpoint()
        self.on_step_end()
        if killed:
            return
        if self.config.trainer.test_freq > 0 and self.global_steps % self.config.trainer.test_freq == 0:
            metrics |= self._validate()
        self._compute_metrics(batch, metrics, {"step": 1.0}, global_steps=self.global_steps, epoch=0)


@pytest.fixture
def killed(tmp_path):
    trainer = Trainer(tmp_path)
    for _ in range(3):
        trainer.train()
    trainer.train(killed=True)
    return tmp_path


@pytest.mark.parametrize("before", [True, False])
def test_the_line_of_the_step_is_completed_and_its_validation_made_up_for(tmp_path, before):
    whole = Trainer(tmp_path / "whole", total=5, before=before)
    for _ in range(5):
        whole.train()
    trainer = Trainer(tmp_path / "cut", total=5, before=before)
    for _ in range(3):
        trainer.train()
    trainer.train(killed=True)
    assert [bool(entry.get("partial")) for entry in read_log(tmp_path / "cut" / NAME)][-2:] == [False, True]
    trainer = Trainer(tmp_path / "cut", total=5, before=before)
    assert trainer.state.budget.used == {"generated_tokens": 400, "questions": 32}
    trainer.train()
    log, expected = read_log(tmp_path / "cut" / NAME), read_log(tmp_path / "whole" / NAME)
    assert [entry.get("cut_short", False) for entry in log] == [entry["step"] == 4 for entry in expected]
    assert not any(entry.get("partial") for entry in log)
    assert [lasting(entry) for entry in log] == [lasting(entry) for entry in expected]
    assert "val/system/f1" in log[-2]["metrics"] and "timing_s/step" in log[-2]["metrics"]


@pytest.mark.parametrize("limits, validated", [({}, False), ({"generated_tokens": 150, "questions": 99}, True)])
def test_only_a_validation_that_was_due_is_made_up_for(tmp_path, limits, validated):
    trainer = Trainer(tmp_path, total=9, test_freq=3, before=False, **limits)
    trainer.train()
    trainer.train(killed=True)
    resumed = Trainer(tmp_path, total=9, test_freq=3, before=False, **limits)
    last = read_log(tmp_path / NAME)[-1]
    assert resumed.total_training_steps == 9 and last["cut_short"] and not last.get("partial")
    assert last["metrics"]["actor/grad_norm"] == 0.5 and ("val/system/f1" in last["metrics"]) is validated


def test_a_checkpoint_is_not_complete_if_a_rollout_server_has_died(tmp_path):
    """The queue in it lacks questions that failed for that reason: no run would ask them again."""
    trainer = Trainer(tmp_path)
    trainer.train()
    trainer.agent_loop_manager.raise_if_broken.side_effect = RuntimeError("rollout server 0 died")
    with pytest.raises(RuntimeError, match="rollout server 0 died"):
        trainer.train()
    assert trainer.done[-1] == "saved" and last_checkpoint(tmp_path) == 1
    assert Trainer(tmp_path).global_steps == 1


def test_a_last_step_that_was_cut_short_is_not_a_finished_run(killed):
    config = OmegaConf.create({"trainer": {"resume_mode": "auto", "total_training_steps": 4}})
    assert not finished_already(killed, config)
    Trainer(killed)  # makes up for the validation
    assert finished_already(killed, config)


def test_progress_sees_a_step_once(tmp_path):
    tail, trainer = LogTail(tmp_path / NAME), Trainer(tmp_path)
    trainer.train(killed=True)
    assert [entry["step"] for entry in tail.news()] == [0]
    Trainer(tmp_path).train()
    assert [entry["step"] for entry in tail.news()] == [0, 1, 2]


def test_a_limit_that_the_step_reached_ends_the_resumed_run(tmp_path):
    trainer = Trainer(tmp_path, total=9, generated_tokens=150)
    trainer.train()
    trainer.train(killed=True)
    resumed = Trainer(tmp_path, total=9, generated_tokens=150)
    assert resumed.total_training_steps == 2 and resumed.state.budget.exhausted
    assert read_log(tmp_path / NAME)[-1]["metrics"]["val/system/f1"] == pytest.approx(0.2)


def test_the_last_step_of_a_budget_is_saved_while_the_engine_sleeps(tmp_path):
    trainer = Trainer(tmp_path, total=9, generated_tokens=150)
    trainer.config.trainer.save_freq = 20
    trainer.train()
    trainer.train()
    assert trainer.done == ["engine wakes", "saved", "engine wakes"] and trainer.total_training_steps == 2
    assert Trainer(tmp_path, total=9, generated_tokens=150).global_steps == 2


def test_a_checkpoint_without_a_part_of_the_run_is_refused_unless_it_is_named(killed):
    trainer = {"default_local_dir": str(killed), "resume_mode": "auto", "test_freq": -1}
    config = OmegaConf.create({"trainer": trainer})
    state = run_state(config, Budget(BudgetSection()))
    state.memory.parts = ("memory",)
    log = (killed / NAME).read_bytes()
    with pytest.raises(ValueError, match=r"global_step_4 lacks memory.*Remedy: .*resume_mode=resume_path"):
        state.start(4, 5)
    assert (killed / NAME).read_bytes() == log
    config.trainer.update({"resume_mode": "resume_path", "resume_from_path": str(killed / "global_step_4")})
    state.start(4, 5)
