"""One policy of several: verl's trainer without its loop, in front of which this class goes (trainers.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.single_controller.ray import ResourcePoolManager

from verl_ext.trainer.doctor import Doctor
from verl_ext.trainer.policies.settings import PolicySection
from verl_ext.trainer.step import Step
from verl_ext.trainer.updates import PolicyUpdates

if TYPE_CHECKING:
    from verl_ext.trainer.policies.coordinator import MultiPolicyTrainer


class PolicyTrainer(PolicyUpdates):
    """verl's trainer on one policy's own configuration; `fit` and `step` are never called.

    The data, the steps, the resource pools, saving and loading are the run's.

    Args:
        name: of the policy.
        section: `mas.policies.<name>`.
        config: the whole configuration as this policy has it (`settings.policy_config`).
        run: the coordinator.
    """

    def __init__(self, name: str, section: PolicySection, config: DictConfig, run: MultiPolicyTrainer):
        self.name, self.section, self.run = name, section, run
        super().__init__(config)
        if section.frozen:
            self.use_critic = self.use_reference_policy = False
        self.doctor = Doctor(config, section.updates)
        self.now = Step()

    # Of the run; verl has a plain attribute.
    global_steps: Any = property(lambda self: self.run.global_steps)

    def _build_replay_buffer(self) -> Any:
        """None: the run has one."""

    def _init_dataloader(self) -> None:
        """Nothing: the run has the data."""

    def _init_dump_executor(self) -> None:
        """Nothing: the run writes what verl dumps."""

    def _init_resource_pool_mgr(self) -> None:
        """Find verl's worker classes, and take the run's pools."""
        super()._init_resource_pool_mgr()
        pools = self.run.resource_pool_manager.resource_pool_dict
        mapping: Any = self.mapping  # of roles, as verl passes it
        self.resource_pool_manager = ResourcePoolManager({}, mapping, resource_pool_dict=pools)

    def _load_checkpoint(self) -> None:
        """Nothing: the run loads all policies."""

    def begin(self, step: Step, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Begin a step with the rows of this policy, if there are any."""
        self.now = Step(step.number, idle=step.idle)
        if self.run.several:
            self.now.metrics["update/rests"] = int(self.rests or not len(batch))
        if len(batch):
            return self._spread(batch, metrics)
        self.now.metrics |= {"update/rows": 0, "update/padding_rows": 0}
        return batch

    def end(self) -> None:
        """End a step, before its metrics are read."""

    @property
    def rests(self) -> bool:
        """True if it does not train in this step."""
        return not self.section.trains(self.global_steps)

    def _may_rest(self) -> bool:
        return not self.rests and super()._may_rest()

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        if self.rests:
            self.now.metrics["update/optimiser_steps"] = 0
            return batch
        return super()._update_actor(batch, metrics)

    def _update_critic(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        return batch if self.rests else super()._update_critic(batch, metrics)
