"""verl's V1 trainers for workflows. Every override calls the method it overrides; nothing of verl is copied.

tests/trainer/test_upstream.py holds hashes of the upstream methods, so that an upgrade of verl that changes what is
assumed here is noticed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.config import omega_conf_to_dataclass

from verl_ext.observe.metrics import failure_report, group_metrics, reduce_stats
from verl_ext.observe.runlog import RunLog, log_name, read_log
from verl_ext.trainer.advantage import batch_of, live_rows, live_tags, register_estimators
from verl_ext.trainer.budget import Budget
from verl_ext.trainer.config import optimiser_steps, read_mas_config
from verl_ext.trainer.loss import WEIGHT, weighted_ppo_loss
from verl_ext.trainer.row_selection import drop_idle, is_idle, regroup, row_weights, select
from verl_ext.trainer.state import checkpoint
from verl_ext.trainer.state.agent_memory import AgentMemory
from verl_ext.trainer.state.decision_heads import DecisionHeads
from verl_ext.trainer.state.trajectories import TrajectoryRecorder
from verl_ext.trainer.workflow import workflow_class


class MultiAgentTrainer:
    """What both trainers add to verl's: regrouping, fixed row order, optimiser-step arithmetic, weights, metrics."""

    def __init__(self, config: DictConfig):
        self.mas = read_mas_config(config)
        workflow_class(self.mas)  # its module may bring algorithms of its own
        register_estimators()
        super().__init__(config)
        self.replay_buffer.poll_interval = self.mas.poll_interval
        self.run_log = RunLog(config.trainer.default_local_dir, log_name(config))
        self.budget = Budget(self.mas.budget)
        self.trajectories = TrajectoryRecorder(config, self.mas.trajectory_log)
        self.memory = AgentMemory(self.mas.memory, config.trainer.default_local_dir)
        temperature = config.actor_rollout_ref.rollout.temperature
        self.heads = DecisionHeads(self.mas, config.trainer.default_local_dir, temperature)
        self._algorithm_state: dict[str, Any] = {}  # what the algorithm keeps from step to step
        self._step_metrics: dict[str, float] = {}
        self._idle = False  # no row of the step under way trains: policy heads alone do, or nothing was to be learned
        self._limit_reached = False  # of mas.budget, by the step under way
        self._cut_short: dict[str, Any] | None = None  # the last step in the log, if it was killed before its end

    # --- life cycle -------------------------------------------------------------------------------------------------

    def on_init_end(self) -> None:
        """Once the workers exist: the weighted loss replaces verl's on every actor rank."""
        actor = omega_conf_to_dataclass(self.config.actor_rollout_ref.actor)
        self.actor_rollout_wg.set_loss_fn(partial(weighted_ppo_loss, config=actor))
        super().on_init_end()

    def _load_checkpoint(self) -> None:
        checkpoint.repair_tracker(self.config.trainer.default_local_dir)
        super()._load_checkpoint()
        restored = 0 if self.config.trainer.get("val_only", False) else self.global_steps
        self.run_log.start(restored, self.total_training_steps)
        self.trajectories.start(restored, self.total_training_steps)
        self.memory.start(self._loaded_from() if self.global_steps else None)
        self.heads.start(self._loaded_from() if self.global_steps else None)
        self._algorithm_state = checkpoint.read_state(self._loaded_from()) if self.global_steps else {}
        entries = read_log(self.run_log.path)
        self._cut_short = next((entry for entry in entries[-1:] if entry.get("partial")), None)
        self.budget.resume(entries)
        if self.budget.exhausted:
            self.total_training_steps = restored  # complete already: verl's loop ends before its first step

    def _loaded_from(self) -> Path:
        """The checkpoint with which this run began."""
        trainer = self.config.trainer
        if trainer.resume_mode == "resume_path":
            return Path(trainer.resume_from_path)
        return Path(trainer.default_local_dir) / f"global_step_{self.global_steps}"

    def fit(self, agent_loop_manager: Any) -> None:
        """verl's, once the rollout workers have the agents' memory and policy heads."""
        self.memory.publish(agent_loop_manager.set_memory)
        self.heads.publish(agent_loop_manager.set_heads)
        super().fit(agent_loop_manager)

    def _save_checkpoint(self) -> None:
        # verl validates and measures a step after it has saved it: a kill in between must not lose what the step used.
        self.run_log.write(self.global_steps, self._step_metrics, partial=True)
        self.memory.save(self.global_steps)
        self.heads.save(self.global_steps)
        checkpoint.write_state(self.config.trainer.default_local_dir, self.global_steps, self._algorithm_state)
        super()._save_checkpoint()
        if self.config.actor_rollout_ref.actor.checkpoint.get("async_save", False):
            return  # still being written: verl keeps its own account
        checkpoint.mark_complete(self.config.trainer.default_local_dir, self.global_steps)

    def _step_once(self, metrics: dict, timing_raw: dict, sample_batch_size: int) -> KVBatchMeta:
        with self._reasons_first("training"):
            return super()._step_once(metrics, timing_raw, sample_batch_size)

    @contextmanager
    def _reasons_first(self, phase: str) -> Iterator[None]:
        """Where verl stumbles, perhaps over a batch without any row, say why rows are missing, too."""
        try:
            yield
        except Exception as error:
            self.agent_loop_manager.raise_if_broken()
            reasons = failure_report(
                self.agent_loop_manager.take_validation_stats()
                if phase == "validation"
                else self.agent_loop_manager.take_stats([])
            )
            if not reasons:
                raise
            raise RuntimeError(
                f"{phase} at step {self.global_steps} stopped by {type(error).__name__}: {error}; "
                f"trajectories that could not finish: {reasons}"
            ) from error

    # --- rows -------------------------------------------------------------------------------------------------------

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict, **kwargs: Any) -> KVBatchMeta:
        """Fix the row order, regroup, drop, then let verl pad and balance."""
        self.agent_loop_manager.raise_if_broken()
        uids = sorted({tag["question"] for tag in batch.tags})
        stats = self.agent_loop_manager.take_stats(uids)
        # Rows that a resumed asynchronous run finds in the queue have no statistics in this process.
        self._step_metrics = reduce_stats(stats) if stats else {}
        self._step_metrics |= self.agent_loop_manager.take_tool_counts()
        self._limit_reached = self.budget.spend(self._step_metrics)
        self._step_metrics |= self.memory.learn(self.global_steps, (e for question in stats for e in question.episodes))
        self._step_metrics |= self.heads.learn(self.global_steps, stats)
        self.trajectories.collect(self.global_steps, uids, self.agent_loop_manager, last=self.budget.exhausted)
        order = sorted(range(len(batch)), key=lambda i: batch.tags[i]["order"])
        batch.reorder(order)
        batch = drop_idle(batch)
        for choose in (regroup, select):
            batch, chosen = choose(batch, self.config, self.mas, self.global_steps)
            self._step_metrics |= chosen
        self._idle = is_idle(batch)
        self._step_metrics["mhgpo/rows"] = 0 if self._idle else len(batch)
        batch = super()._balance_batch(batch, metrics, **kwargs)
        self._step_metrics["mhgpo/padding_rows"] = len(batch) - self._step_metrics["mhgpo/rows"]
        return batch

    # --- optimiser steps --------------------------------------------------------------------------------------------

    def _mini_batches(self, section: DictConfig) -> int:
        return optimiser_steps(self.config, section)

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """Pad to what the ranks and mini-batches need, whatever the number of rows of a question."""
        multiple = self._mini_batches(self.config.actor_rollout_ref.actor)
        if self.use_critic:
            multiple = math.lcm(multiple, self._mini_batches(self.config.critic))
        return dp_size * multiple

    @contextmanager
    def _mini_batch_rows(self, section: DictConfig, rows: int) -> Iterator[None]:
        """For the time of an update, let verl's ppo_mini_batch_size · rollout.n be this step's rows / mini-batches."""
        rollout = self.config.actor_rollout_ref.rollout
        before = section.ppo_mini_batch_size, rollout.n
        mini = rows // self._mini_batches(section)
        with open_dict(self.config):
            section.ppo_mini_batch_size, rollout.n = mini, 1
        try:
            yield
        finally:
            with open_dict(self.config):
                section.ppo_mini_batch_size, rollout.n = before

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        if self._idle:  # not even decay or momentum may move weights that nothing was learned for
            self._step_metrics["mhgpo/optimiser_steps"] = 0
            return batch
        actor = self.config.actor_rollout_ref.actor
        self._step_metrics["mhgpo/optimiser_steps"] = self._mini_batches(actor) * actor.ppo_epochs
        with self._mini_batch_rows(actor, len(batch)):
            batch = super()._update_actor(batch, metrics)
        for name in [name for name in metrics if name.startswith("actor/adapters/")]:
            metrics[name.removeprefix("actor/")] = metrics.pop(name)
        return batch

    def _update_critic(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        if self._idle:
            return batch
        with self._mini_batch_rows(self.config.critic, len(batch)):
            return super()._update_critic(batch, metrics)

    # --- advantages and weights -------------------------------------------------------------------------------------

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        self._step_metrics |= {} if self._idle else group_metrics(live_tags(batch.tags))
        with batch_of(batch.tags, self.mas.advantage, self._algorithm_state):
            batch = super()._compute_advantage(batch, metrics)
        self.trajectories.write_training(self.global_steps, batch)
        weights = self._row_weights(batch.tags)
        if not self._idle:
            used = weights[live_rows(batch.tags)]
            self._step_metrics |= {"mhgpo/weight_max": used.max().item(), "mhgpo/weight_min": used.min().item()}
        fields = TensorDict({WEIGHT: weights.float()}, batch_size=len(batch))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    def _row_weights(self, tags: list[dict[str, Any]]) -> torch.Tensor:
        """(N,) weights of `mas.loss`; padding rows get 0, and N counts them because verl's mean over rows does."""
        live, kind = live_rows(tags), self.mas.loss.agent_weights
        weights = torch.zeros(len(tags), dtype=torch.float64)
        kept = live_tags(tags)
        # verl's seq-mean modes count padding rows; token-mean counts their tokens, of which there are none.
        padded = self.config.actor_rollout_ref.actor.loss_agg_mode.startswith("seq-mean")
        scale = len(tags) / len(kept) if padded else 1.0
        if kind == "none":
            weights[live] = scale
        else:
            weights[live] = scale * row_weights(kind, kept)
        return weights

    # --- validation and metrics -------------------------------------------------------------------------------------

    def _validate(self) -> dict[str, float]:
        self.agent_loop_manager.take_validation_stats()
        self.trajectories.discard_validation(self.agent_loop_manager)
        with self._reasons_first("validation"):
            metrics = super()._validate()
        self.agent_loop_manager.raise_if_broken()
        self.trajectories.write_validation(self.global_steps, self.agent_loop_manager)
        ours = reduce_stats(self.agent_loop_manager.take_validation_stats())
        ours |= self.agent_loop_manager.take_tool_counts()
        metrics |= {f"val/{name}": value for name, value in ours.items()}
        if self.global_steps == 0 or self.config.trainer.get("val_only", False):
            self.run_log.write(self.global_steps, metrics)
        elif self._cut_short and self._cut_short["step"] == self.global_steps:
            self.run_log.write(self.global_steps, self._cut_short["metrics"] | metrics)
        return metrics

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict, timing_raw: dict, **kwargs: Any) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, **kwargs)
        metrics.update(self._step_metrics)
        if timing_raw.get("gen") and "sampling/generated_tokens" in metrics:
            metrics["sampling/tokens_per_second"] = metrics["sampling/generated_tokens"] / timing_raw["gen"]
        if self._limit_reached:
            self._reach_budget(metrics)
        self.run_log.write(self.global_steps, metrics)

    def _reach_budget(self, metrics: dict) -> None:
        """Validate where a limit of `mas.budget` is reached; end the run where all are.

        verl has validated and saved this step already if its frequencies said so, and compares `total_training_steps`
        before each step.
        """
        test_freq, save_freq = self.config.trainer.test_freq, self.config.trainer.save_freq
        last = self.global_steps >= self.total_training_steps
        if test_freq > 0 and not last and self.global_steps % test_freq:
            self.on_validate_begin()
            metrics.update(self._validate())
            self.on_validate_end()
        if self.budget.exhausted and not last:
            self.total_training_steps = self.global_steps
            self.run_log.total_steps = self.global_steps
            if save_freq > 0 and self.global_steps % save_freq:
                self._save_checkpoint()


def _reads(mode: str) -> property:
    """verl compares `trainer_mode` with its own names in many places, so a subclass must go by its parent's name."""
    return property(lambda self: mode, lambda self, value: None)


@register_trainer("mas_sync")
class MultiAgentTrainerSync(MultiAgentTrainer, PPOTrainerSync):
    """Synchronous: rollout and training alternate."""

    trainer_mode = _reads("sync")


@register_trainer("mas_colocate_async")
class MultiAgentTrainerColocateAsync(MultiAgentTrainer, PPOTrainerColocateAsync):
    """Partial rollouts: unfinished trajectories go on with the new weights; rows carry the versions they span."""

    trainer_mode = _reads("colocate_async")

    def on_sample_end(self) -> None:
        """The engine pauses: limits on calls stand still until `on_step_end`."""
        self.agent_loop_manager.pause()
        super().on_sample_end()

    def on_step_end(self) -> None:
        """New weights are in place and the engine goes on."""
        super().on_step_end()
        self.agent_loop_manager.resume()
