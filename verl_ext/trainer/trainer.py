"""verl's V1 trainers for workflows. Every override calls the method it overrides; nothing of verl is copied.

A training step:

    1  rollouts           verl asks the rollout workers for trajectories
    2  statistics         what the workers counted becomes metrics
    3  budget             the step counts against mas.budget
    4  memory and heads   the agents' memories and policy heads learn from the step
    5  trajectory log     takes its questions; it is written when advantages are known
    6  rows               are put in order, grouped across questions, and selected (row_selection.py)
    7  log-probabilities  verl computes old and reference log-probabilities, and the critic's values (MAPPO)
    8  advantages         the algorithm computes them, and a weight for every row
    9  update             verl updates critic and actor with the weighted loss
    10 end                verl saves, sends weights, validates (at its frequencies); metrics, run log, end of a budget

2 to 6 are `step.after_rollouts`. `_balance_batch` calls it, because that is verl's first hook after the rollouts.

tests/trainer/test_upstream.py holds hashes of the upstream methods, so that an upgrade of verl that changes what is
assumed here is noticed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf, open_dict
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from verl_ext.observe.metrics import group_metrics, reduce_stats
from verl_ext.trainer import modes, nodes, ranks, row_selection
from verl_ext.trainer.advantage import batch_of, register_estimators
from verl_ext.trainer.batch import live_tags
from verl_ext.trainer.build import workflow_class
from verl_ext.trainer.config import read_mas_config
from verl_ext.trainer.doctor import Doctor, observed_columns
from verl_ext.trainer.first_to_end import FirstToEnd
from verl_ext.trainer.loss import WEIGHT
from verl_ext.trainer.row import Tag, unpack
from verl_ext.trainer.state import checkpoint, waiting
from verl_ext.trainer.state.run_state import RunState
from verl_ext.trainer.step import Step, after_rollouts, why_it_stopped
from verl_ext.trainer.updates import READ_BY_WORKERS, PolicyUpdates

if TYPE_CHECKING:
    from verl_ext.trainer.rollout.agent_loop import MultiAgentLoopManager


class MultiAgentTrainer(PolicyUpdates):
    """What both trainers add to verl's: selection and order of rows, row weights, metrics, and state."""

    agent_loop_manager: MultiAgentLoopManager
    # Of a step that trains in several (separate_async.py): those that have trained.
    parts: Sequence[Step] = ()

    def __new__(cls, config: DictConfig) -> MultiAgentTrainer:
        """With `mas.policies`, the trainer of several policies: verl makes a trainer by the name of its mode alone."""
        if OmegaConf.select(config, "mas.policies"):
            from verl_ext.trainer.policies.trainers import TRAINERS

            cls = TRAINERS.get(cls, cls)
        return object.__new__(cls)

    def __init__(self, config: DictConfig):
        self.mas = read_mas_config(config)
        workflow_class(self.mas)  # its module may bring algorithms of its own
        checkpoint.keep_two(config)
        register_estimators()
        nodes.check_cluster(config)
        nodes.keep_balancer_here()
        super().__init__(config)
        self.replay_buffer.poll_interval = self.mas.poll_interval
        self.state = RunState(config, self.mas)
        self.doctor = Doctor(config)
        self.now = Step()

    # --- life cycle -------------------------------------------------------------------------------------------------

    def on_init_end(self) -> None:
        """Set our loss, once the workers exist."""
        self._set_loss()
        super().on_init_end()

    def _load_checkpoint(self) -> None:
        checkpoint.prepare_start(self.config)
        super()._load_checkpoint()
        waiting.clear_trained()
        self.state.start(self.global_steps, self.total_training_steps)
        if self.state.budget.exhausted:  # complete already: verl's loop ends before its first step
            self.total_training_steps = 0 if self.config.trainer.get("val_only", False) else self.global_steps

    def fit(self, agent_loop_manager: Any) -> None:
        """Give the rollout workers what the checkpoint has for them, then run verl's `fit`."""
        self.state.publish(agent_loop_manager)
        workers = ranks.training_processes(self.actor_rollout_wg)
        servers = ranks.rollout_servers(self._rollout_server_managers())
        with (
            ranks.watched(agent_loop_manager, self.mas.limits, workers, servers),
            nodes.between_polls(self.replay_buffer, agent_loop_manager.replace_dead),
        ):
            super().fit(agent_loop_manager)

    def _save_checkpoint(self) -> None:
        self.state.save(self.global_steps, self._metrics_so_far())
        super()._save_checkpoint()
        # The queue that was saved may lack questions that failed because their rollout server died: they would be lost.
        self.agent_loop_manager.raise_if_broken(nodes.BROKEN)
        self.state.mark_complete(self.global_steps, self.agent_loop_manager)

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> KVBatchMeta:
        """Sample and train as verl does, and keep what the step's metrics are computed from."""
        began = time.perf_counter()
        batch = super().step(metrics, timing_raw)
        self._trained = batch, metrics, timing_raw | {"step": time.perf_counter() - began}
        return batch

    def _step_once(self, metrics: dict[str, Any], timing_raw: dict[str, Any], sample_batch_size: int) -> KVBatchMeta:
        with self._explain_failures("training"):
            return super()._step_once(metrics, timing_raw, sample_batch_size)

    @contextmanager
    def _explain_failures(self, phase: str) -> Iterator[None]:
        """If verl fails, perhaps because a batch has no row, raise with the reasons why trajectories failed."""
        try:
            yield
        except Exception as error:
            self.agent_loop_manager.raise_if_broken(nodes.BROKEN)
            stats = self.agent_loop_manager.take_stats(None if phase == "validation" else [])
            if words := why_it_stopped(error, stats, f"{phase} at step {self.global_steps}"):
                raise RuntimeError(words) from error
            raise

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict[str, Any], **kwargs: Any) -> KVBatchMeta:
        """Do the work that follows the rollouts (step.py), then verl's balancing."""
        self.agent_loop_manager.raise_if_broken()
        last = len(self.parts) + 1 == self.parameter_sync_step
        self.now, batch = after_rollouts(
            self.global_steps, batch, self.state, self.mas, self.agent_loop_manager, self.parts, last
        )
        self.state.error_log.tell(self.now.stats, f"step {self.global_steps}")
        return self._spread(batch, metrics, **kwargs)

    def on_step_end(self) -> None:
        """Save the last step of the budget, if verl has not, while the engine sleeps; then verl sends the weights."""
        freq, last = self.config.trainer.save_freq, self.global_steps >= self.total_training_steps
        if self.state.budget.exhausted and freq > 0 and self.global_steps % freq and not last:
            self._save_checkpoint()
        super().on_step_end()

    # --- advantages and weights -------------------------------------------------------------------------------------

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Compute advantages by our algorithm, then the weight of every row in the loss."""
        tags = unpack(batch.tags)
        if not self.now.idle:
            self.now.metrics |= group_metrics(live_tags(tags))
        with batch_of(tags, self.state.algorithm), observed_columns() as columns:
            batch = super()._compute_advantage(batch, metrics)
        weights = self._weights(tags)
        self.state.trajectories.write_training(self.global_steps, batch, weights)
        if not self.now.idle:
            weights = self._examine(batch, columns, weights)
        fields = TensorDict({WEIGHT: weights.float()}, batch_size=len(batch))
        batch = tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
        batch.fields = list(READ_BY_WORKERS)
        return batch

    def _weights(self, tags: list[Tag]) -> torch.Tensor:
        """(N,) float64: the weight of each row in the loss."""
        mode = self.config.actor_rollout_ref.actor.loss_agg_mode
        return row_selection.weights_of(tags, self.mas.loss.agent_weights, mode)

    # --- validation and metrics -------------------------------------------------------------------------------------

    def _validate(self) -> dict[str, float]:
        self.agent_loop_manager.take_stats(None)
        self.state.trajectories.discard_validation(self.agent_loop_manager)
        with self._explain_failures("validation"):
            metrics = super()._validate()
        self.agent_loop_manager.raise_if_broken()
        self.state.trajectories.write_validation(self.global_steps, self.agent_loop_manager)
        stats = self.agent_loop_manager.take_stats(None)
        self.state.error_log.tell(stats, f"validation at step {self.global_steps}")
        ours = reduce_stats(stats) | self.agent_loop_manager.take_tool_counts()
        metrics |= {f"val/{name}": value for name, value in ours.items()}
        self.state.log_validation(self.global_steps, metrics)
        return metrics

    def _compute_metrics(
        self, batch: KVBatchMeta, metrics: dict[str, Any], timing_raw: dict[str, Any], **kwargs: Any
    ) -> None:
        """Compute verl's metrics, then finish the step."""
        super()._compute_metrics(batch, metrics, timing_raw, **kwargs)
        self._add_ours(metrics, timing_raw)
        self.state.algorithm.measured.clear()
        if self.now.limit_reached:
            self._reach_budget(metrics)
        self.state.run_log.write(self.global_steps, metrics)

    def _add_ours(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> None:
        metrics.update(self.now.metrics | self.state.algorithm.measured)
        # In the asynchronous modes rollouts go on all the time, and `gen` is what the training waited for them.
        seconds = timing_raw.get("gen" if modes.mode_of(self.config) == modes.SYNC else "step")
        if seconds and "sampling/generated_tokens" in metrics:
            metrics["sampling/tokens_per_second"] = metrics["sampling/generated_tokens"] / seconds

    def _metrics_so_far(self) -> dict[str, Any]:
        """What the log says of this step if the run is killed after its checkpoint: all but validation and sending.

        Without verl's MoE metric, which counts every call.
        """
        batch, metrics, timing_raw = self._trained
        metrics, rollout = dict(metrics), self.config.actor_rollout_ref.rollout
        interval, step = rollout.get("moe_load_balance_metrics_interval", 0), self.global_steps
        epoch = (step - 1) // self.steps_per_epoch
        with open_dict(rollout):
            rollout.moe_load_balance_metrics_interval = 0
            super()._compute_metrics(batch, metrics, timing_raw, global_steps=step, epoch=epoch)
            rollout.moe_load_balance_metrics_interval = interval
        self._add_ours(metrics, timing_raw)
        return metrics

    def _reach_budget(self, metrics: dict[str, Any]) -> None:
        """Validate where a limit of `mas.budget` is reached; end the run where all are.

        verl has already validated this step if its frequency asks for it. It compares `total_training_steps` before
        each step.
        """
        test_freq = self.config.trainer.test_freq
        last = self.global_steps >= self.total_training_steps
        if test_freq > 0 and not last and self.global_steps % test_freq:
            self.on_validate_begin()
            metrics.update(self._validate())
            self.on_validate_end()
        if self.state.budget.exhausted and not last:
            self.total_training_steps = self.global_steps
            self.state.run_log.total_steps = self.global_steps


def reads(mode: str) -> property:
    """verl compares `trainer_mode` with its own names in many places, so a subclass must keep its parent's name."""
    return property(lambda self: mode, lambda self, value: None)


@register_trainer("mas_sync")
class MultiAgentTrainerSync(FirstToEnd, MultiAgentTrainer, PPOTrainerSync):
    """Synchronous: rollout and training alternate."""

    trainer_mode = reads("sync")


@register_trainer("mas_colocate_async")
class MultiAgentTrainerColocateAsync(MultiAgentTrainer, PPOTrainerColocateAsync):
    """Partial rollouts: unfinished trajectories go on with the new weights; rows carry the versions they span."""

    trainer_mode = reads("colocate_async")

    def on_sample_end(self) -> None:
        """Pause the time limits of calls while the engine pauses, until `on_step_end`."""
        self.agent_loop_manager.pause()
        super().on_sample_end()

    def on_step_end(self) -> None:
        """Resume the time limits: the engine goes on with new weights."""
        super().on_step_end()
        self.agent_loop_manager.resume()


register_estimators()
