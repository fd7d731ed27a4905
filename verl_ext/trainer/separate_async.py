"""`trainer_mode=mas_separate_async`: rollouts go on beside the training, on ranks of their own.

A step may train in parts (`trainer.v1.separate_async.parameter_sync_step`), each as soon as its questions have been
sampled. A part is a batch of its own: its groups, its weights of rows, its optimiser steps. Weights are sent after the
last one.
"""

from __future__ import annotations

from typing import Any

import ray
from omegaconf import DictConfig, open_dict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import trainer_separate_async
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync

from verl_ext.engine.fsdp.copies import CopyingActor
from verl_ext.engine.replaced import replaced
from verl_ext.trainer import modes
from verl_ext.trainer.step import Step, merged
from verl_ext.trainer.trainer import MultiAgentTrainer, reads


class SeparateAsync(PPOTrainerSeparateAsync):
    """verl's trainer, of a run or of one policy of several (policies/trainers.py)."""

    trainer_mode = reads("separate_async")

    def __init__(self, config: DictConfig):
        # verl asks for one optimiser step per part of a step, and reads no more than that from these settings here.
        actor, parts = config.actor_rollout_ref.actor, modes.parts_of_step(config)
        mini = actor.ppo_mini_batch_size
        with open_dict(config):
            actor.ppo_mini_batch_size = config.data.train_batch_size // parts
            try:
                super().__init__(config)
            finally:
                actor.ppo_mini_batch_size = mini

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef, Role.RefPolicy):
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(CopyingActor)

    def _setup(self) -> None:
        # Without replicas on the trainer's ranks verl logs a line with an argument that logging does not take.
        with replaced(trainer_separate_async.logger, disabled=True):
            super()._setup()


@register_trainer(modes.SEPARATE)
class MultiAgentTrainerSeparateAsync(MultiAgentTrainer, SeparateAsync):
    """Rollouts never wait for the training; rows carry the versions of the weights that they span."""

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> KVBatchMeta:
        """As in the other modes; our metrics of its parts become those of the step."""
        self.parts: list[Step] = []
        batch = super().step(metrics, timing_raw)
        self.now, self.parts = merged(self.parts), []
        return batch

    def _step_once(self, metrics: dict[str, Any], timing_raw: dict[str, Any], sample_batch_size: int) -> KVBatchMeta:
        batch = super()._step_once(metrics, timing_raw, sample_batch_size)
        self.now.metrics |= self.state.algorithm.measured
        self.state.algorithm.measured.clear()
        self.parts.append(self.now)
        return batch

    def on_step_end(self) -> None:
        """Pause the time limits of calls while the engine gets new weights."""
        self.agent_loop_manager.pause()
        super().on_step_end()
        self.agent_loop_manager.resume()
