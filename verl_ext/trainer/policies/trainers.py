"""The trainers of several policies, and their policies, in each mode of verl."""

from __future__ import annotations

from typing import Any

from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import HybridEngineMode
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from verl_ext.trainer import modes
from verl_ext.trainer.policies.coordinator import MultiPolicyTrainer
from verl_ext.trainer.policies.fan import WeightManagers
from verl_ext.trainer.policies.policy import PolicyTrainer
from verl_ext.trainer.separate_async import MultiAgentTrainerSeparateAsync, SeparateAsync
from verl_ext.trainer.step import Step, merged
from verl_ext.trainer.trainer import (
    MultiAgentTrainer,
    MultiAgentTrainerColocateAsync,
    MultiAgentTrainerSync,
    reads,
)


class PolicySync(PolicyTrainer, PPOTrainerSync):
    """A policy of `mas_sync`."""

    trainer_mode = reads("sync")


class PolicyColocateAsync(PolicyTrainer, PPOTrainerColocateAsync):
    """A policy of `mas_colocate_async`."""

    trainer_mode = reads("colocate_async")


class PolicySeparateAsync(PolicyTrainer, SeparateAsync):
    """A policy of `mas_separate_async`: it has rollout ranks of its own, and may have no row in a part of a step."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.parts: list[Step] = []

    def begin(self, step: Step, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Begin a part of a step.

        In the first one, number 0, verl keeps the weights for π_old: only parts that have rows of this policy count.
        """
        if step.number != self.now.number:
            self.parts, self.local_trigger_step = [], -1
        self.local_trigger_step += bool(len(batch))
        batch = super().begin(step, batch, metrics)
        self.parts.append(self.now)
        return batch

    def end(self) -> None:
        """The metrics of the parts become those of the step."""
        self.now = merged(self.parts)


class MultiPolicySync(MultiPolicyTrainer, MultiAgentTrainerSync):
    """`mas_sync` with `mas.policies`."""

    policy = PolicySync


class MultiPolicyColocateAsync(MultiPolicyTrainer, MultiAgentTrainerColocateAsync):
    """`mas_colocate_async` with `mas.policies`."""

    policy = PolicyColocateAsync


class MultiPolicySeparateAsync(MultiPolicyTrainer, MultiAgentTrainerSeparateAsync):
    """`mas_separate_async` with `mas.policies`."""

    policy = PolicySeparateAsync
    standalone_checkpoint_manager: Any

    def _setup_rollouts(self) -> None:
        policies: dict[str, Any] = dict(self.policies)
        managers = {name: policy.standalone_checkpoint_manager for name, policy in policies.items()}
        self.standalone_checkpoint_manager = WeightManagers(managers, self.sections)
        self.current_mode = HybridEngineMode.TRAINER  # there are no replicas on the training ranks

    def _get_n_gpus_for_throughput(self) -> int:
        return self.resource_pool_manager.get_n_gpus() + modes.rollout_ranks(self.config)


TRAINERS: dict[type[MultiAgentTrainer], type[MultiAgentTrainer]] = {
    MultiAgentTrainerSync: MultiPolicySync,
    MultiAgentTrainerColocateAsync: MultiPolicyColocateAsync,
    MultiAgentTrainerSeparateAsync: MultiPolicySeparateAsync,
}
