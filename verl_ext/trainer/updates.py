"""What a policy does with the rows of a step: it pads and balances them, and updates its actor and its critic.

verl's trainer is the policy of a run with one; in a run with several, each has one (policies/policy.py).
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transfer_queue import KVBatchMeta
from verl.utils.config import omega_conf_to_dataclass

from verl_ext.engine.fsdp.masked_logits import ALLOWED
from verl_ext.engine.lora.adapters import AGENT_ID
from verl_ext.trainer import row_selection
from verl_ext.trainer.config import mini_batch_rows, optimiser_steps
from verl_ext.trainer.doctor import Columns, Doctor
from verl_ext.trainer.loss import WEIGHT, weighted_ppo_loss
from verl_ext.trainer.resting import may_rest, resting, weights_without
from verl_ext.trainer.row import unpack
from verl_ext.trainer.step import Step

# The training processes fetch these fields of a row, where it has them; the others (messages, ground truth, …) are for
# the trainer's process. verl would send all.
READ_BY_WORKERS = (
    *("prompts", "responses", "input_ids", "position_ids", "response_mask", "loss_mask", "rollout_log_probs"),
    *("old_log_probs", "ref_log_prob", "values", "advantages", "returns", "rollout_is_weights"),
    *(WEIGHT, ALLOWED, AGENT_ID),
)

if TYPE_CHECKING:  # the trainer of verl that `PolicyUpdates` goes in front of
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer as Trainer
else:
    Trainer = object


class PolicyUpdates(Trainer):
    """What a policy adds to verl's trainer."""

    doctor: Doctor
    now: Step
    # The places of the rows that the step's update leaves out.
    _resting: frozenset[int] = frozenset()

    def _set_loss(self) -> None:
        """Replace verl's loss by the weighted loss on every actor rank."""
        actor = omega_conf_to_dataclass(self.config.actor_rollout_ref.actor)
        self.actor_rollout_wg.set_loss_fn(partial(weighted_ppo_loss, config=actor))

    def _spread(self, batch: KVBatchMeta, metrics: dict[str, Any], **kwargs: Any) -> KVBatchMeta:
        """Pad the rows of a step and let verl balance them over the ranks."""
        rows = 0 if self.now.idle else len(batch)
        multiple = self._get_required_batch_multiple(self._data_parallel_size())
        batch = row_selection.pad(batch, multiple, self.tokenizer.eos_token_id)
        batch = super()._balance_batch(batch, metrics, **kwargs)
        batch.fields = list(READ_BY_WORKERS)
        self.now.metrics |= {"update/rows": rows, "update/padding_rows": len(batch) - rows}
        return batch

    def _data_parallel_size(self) -> int:
        ranks = self.actor_rollout_wg._dispatch_info.get("actor") or self.actor_rollout_wg._query_dispatch_info("actor")
        return int(max(ranks)) + 1

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """The multiple to which a batch is padded: ranks × mini-batches, for any number of rows per question."""
        multiple = optimiser_steps(self.config, self.config.actor_rollout_ref.actor)
        if self.use_critic:
            multiple = math.lcm(multiple, optimiser_steps(self.config, self.config.critic))
        return dp_size * multiple

    def _examine(self, batch: KVBatchMeta, columns: Columns, weights: torch.Tensor) -> torch.Tensor:
        """Examine the rows of a step before their update, and let rest those that would add nothing to the gradient.

        Args:
            columns: see `Doctor.examine`.
            weights: (N,), of each row in a mean over all.

        Returns:
            (N,) weights with which the rows are updated.
        """
        mask, rests, sent = columns["response_mask"], torch.zeros(len(batch), dtype=torch.bool), weights
        if self._may_rest():
            multiple = self._get_required_batch_multiple(self._data_parallel_size())
            rests = resting(unpack(batch.tags), mask, columns["advantages"], multiple)
            sent = weights_without(rests, weights, mask, self.config.actor_rollout_ref.actor.loss_agg_mode)
        self._resting = frozenset(rests.nonzero()[:, 0].tolist())
        self.now.metrics |= self.doctor.examine(self.global_steps, batch, columns, weights, sent, rests)
        self.now.metrics["update/resting_rows"] = sum(not batch.tags[row].get("is_padding") for row in self._resting)
        return sent

    def _may_rest(self) -> bool:
        return may_rest(self.config)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        if self.now.idle:  # no row trains: weight decay and momentum must not change the weights either
            self.now.metrics["update/optimiser_steps"] = 0
            return batch
        actor = self.config.actor_rollout_ref.actor
        mini_batches = optimiser_steps(self.config, actor)
        self.now.metrics["update/optimiser_steps"] = mini_batches * actor.ppo_epochs
        trains = batch
        if self._resting:
            trains = row_selection.chosen(batch, [row for row in range(len(batch)) if row not in self._resting])
            trains = super()._balance_batch(trains, {})
        with mini_batch_rows(self.config, actor, len(trains)):
            trains = super()._update_actor(trains, metrics)
        parts = self._data_parallel_size() * mini_batches
        self.now.metrics |= self.doctor.after_update(self.global_steps, trains, metrics, self.now.metrics, parts)
        if self.local_trigger_step and self.doctor.bypass:  # the part before has moved the weights
            self.now.metrics.pop("doctor/kl_numerical", None)
        for name in [name for name in metrics if name.startswith("actor/adapters/")]:
            metrics[name.removeprefix("actor/")] = metrics.pop(name)
        return batch

    def _update_critic(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        if self.now.idle:
            return batch
        with mini_batch_rows(self.config, self.config.critic, len(batch)):
            return super()._update_critic(batch, metrics)
