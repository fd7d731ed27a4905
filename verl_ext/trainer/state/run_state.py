"""The state of a run beside verl's own: restored at the start, saved with each checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, open_dict

from verl_ext.algorithms import make_algorithm
from verl_ext.observe.error_log import ErrorLog
from verl_ext.observe.runlog import CUT_SHORT, PARTIAL, RunLog, log_name, read_log
from verl_ext.trainer.budget import Budget, parameters_of_agents
from verl_ext.trainer.build import build_workflow
from verl_ext.trainer.config import MasConfig
from verl_ext.trainer.state import checkpoint, waiting
from verl_ext.trainer.state.agent_memory import AgentMemory
from verl_ext.trainer.state.best import BestCheckpoint
from verl_ext.trainer.state.decision_heads import DecisionHeads
from verl_ext.trainer.state.oversampling import Oversampling
from verl_ext.trainer.state.tool_caches import recorded_results
from verl_ext.trainer.state.trajectory_recorder import TrajectoryRecorder
from verl_ext.trainer.state.waiting import Waiting


class RunState:
    """The logs, the budget, memories, policy heads, questions that were cut, and the algorithm's state of one run.

    Args:
        config: verl's whole configuration.
        mas: its section `mas`.
    """

    def __init__(self, config: DictConfig, mas: MasConfig):
        self.config, self.folder = config, Path(config.trainer.default_local_dir)
        self.algorithm = make_algorithm(config.algorithm.adv_estimator, mas.advantage)
        self.run_log = RunLog(self.folder, log_name(config), build_workflow(mas).headline)
        self.error_log = ErrorLog(self.folder)
        self.budget = Budget(mas.budget, parameters_of_agents(config, mas))
        self.trajectories = TrajectoryRecorder(config, mas.trajectory_log)
        self.memory = AgentMemory(mas.memory, self.folder)
        self.heads = DecisionHeads(mas, self.algorithm, self.folder, config.actor_rollout_ref.rollout.temperature)
        self.oversampling = Oversampling(config, mas.sampling)
        self.best = BestCheckpoint(self.folder, config.trainer.get("keep_best"))
        # Questions of the loaded checkpoint that wait in its queue, until the rollout workers have them.
        self._waiting: dict[str, Waiting] = {}
        # The last entry of the log, if the run was killed between that step's checkpoint and its validation.
        self._unfinished: dict[str, Any] | None = None

    def start(self, step: int, last_step: int) -> None:
        """Start after `step`, the step of the checkpoint that verl has loaded (0: from scratch)."""
        loaded = self._loaded_from(step) if step else None
        self._check_parts(loaded)
        kept = 0 if self.config.trainer.get("val_only", False) else step
        self.run_log.start(kept, last_step)
        self._finish_log(step, last_step)
        self.trajectories.start(kept, last_step)
        self.memory.start(loaded)
        self.heads.start(loaded)
        self.oversampling.start(loaded)
        self._waiting = waiting.load(loaded) if loaded else {}
        self.algorithm.state.update(checkpoint.read_state(loaded) if loaded else {})

    def _finish_log(self, step: int, last_step: int) -> None:
        """Complete the line of a step whose end a kill cut off, or let verl validate first if a validation is lacking.

        verl's `fit` validates before its loop, which ends before its first step if `step` was the last one.
        """
        entries = read_log(self.run_log.path)
        limit_reached = self.budget.resume(entries)
        self._unfinished = next((entry for entry in entries[-1:] if entry.get(PARTIAL)), None)
        if self._unfinished is None:
            return
        freq = self.config.trainer.test_freq
        if freq > 0 and (step % freq == 0 or step >= last_step or limit_reached):
            with open_dict(self.config.trainer):
                self.config.trainer.val_before_train = True
        else:
            self._complete(self._unfinished["metrics"])

    def _complete(self, metrics: dict[str, Any]) -> None:
        self.run_log.write(self._unfinished["step"], metrics, CUT_SHORT)
        self._unfinished = None

    def _check_parts(self, loaded: Path | None) -> None:
        """Refuse a checkpoint of this run that lacks a part. Only `resume_path` may go on from one without it."""
        if loaded is None or self.config.trainer.resume_mode == "resume_path":
            return
        parts = (*self.memory.parts, *self.heads.parts, *self.oversampling.parts)
        lacking = [part for part in parts if not (loaded / part).exists()]
        if lacking:
            raise ValueError(
                f"the checkpoint {loaded} lacks {', '.join(lacking)}, so the run cannot continue as it was. Remedy: "
                f"restore {loaded / lacking[0]}; to begin without it on purpose: trainer.resume_mode=resume_path and "
                f"trainer.resume_from_path={loaded}"
            )

    def _loaded_from(self, step: int) -> Path:
        if self.config.trainer.resume_mode == "resume_path":
            return Path(self.config.trainer.resume_from_path)
        return self.folder / f"global_step_{step}"

    def publish(self, manager: Any) -> None:
        """Give the rollout workers memories and policy heads, now and after each step; and the waiting questions."""
        manager.restore(self._waiting)
        self._waiting = {}
        self.memory.publish(manager.set_memory)
        self.heads.publish(manager.set_heads)

    def save(self, step: int, metrics: dict[str, float]) -> None:
        """Write everything into the checkpoint of `step`, before verl writes its part."""
        # verl validates a step after saving it. A kill in between must not lose what the step counted.
        self.run_log.write(step, metrics, PARTIAL)
        if not self._saves_later:
            checkpoint.begin(self.folder, step)
        self.memory.save(step)
        self.heads.save(step)
        self.oversampling.save(step)
        checkpoint.write_state(self.folder, step, self.algorithm.state)

    def mark_complete(self, step: int, manager: Any) -> None:
        """Save the questions that wait in the queue, and mark the checkpoint of `step` as complete.

        After verl has written its part: all questions that ended before it saved the queue are known by now.
        """
        waiting.save(checkpoint.place_of(self.folder, step), manager.waiting())
        if not self._saves_later:
            checkpoint.mark_complete(self.folder, step, recorded_results(self.config))

    @property
    def _saves_later(self) -> bool:
        """verl's workers write checkpoints in the background, and verl keeps the tracker."""
        return bool(self.config.actor_rollout_ref.actor.checkpoint.get("async_save", False))

    def log_validation(self, step: int, metrics: dict[str, float]) -> None:
        """Write a validation that belongs to no step's end: before the first step, alone, or of an unfinished step.

        The checkpoint of the step is kept if it is the best so far.
        """
        alone = self.config.trainer.get("val_only", False)
        if not alone:
            self.best.consider(step, metrics)
        if step == 0 or alone:
            self.run_log.write(step, metrics)
        elif self._unfinished and self._unfinished["step"] == step:
            self._complete(self._unfinished["metrics"] | metrics)
