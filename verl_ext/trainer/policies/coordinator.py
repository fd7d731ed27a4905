"""The trainer of several policies: one loop, one forest, one credit and one advantage; the updates are the policies'.

It goes in front of our trainer of a mode (trainers.py).

A training step is that of trainer.py. What a policy does, the coordinator asks of each in turn, with the rows of its
agents: to pad and balance them, log-probabilities, values, and updates. The advantages are computed over all rows; the
weights of the rows are those of a batch that holds the policy's rows alone, because its loss is a mean over them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from omegaconf import DictConfig
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.utils.config import omega_conf_to_dataclass

from verl_ext.trainer.doctor import Columns
from verl_ext.trainer.policies import checkpoints
from verl_ext.trainer.policies.fan import PREFIX, Fan, WorkerGroups
from verl_ext.trainer.policies.policy import PolicyTrainer
from verl_ext.trainer.policies.settings import policy_config, read_policies
from verl_ext.trainer.row import Tag, unpack
from verl_ext.trainer.row_selection import chosen
from verl_ext.trainer.trainer import MultiAgentTrainer

RESTING = "update/resting_rows"
# Columns that the doctor reads.
EXAMINED = ("response_mask", "rollout_log_probs", "old_log_probs", "advantages")
# Worker groups that share a GPU, as verl counts them; every policy has one.
COLOCATED = 3


class MultiPolicyTrainer(MultiAgentTrainer):
    """What all modes add to our trainer with `mas.policies`."""

    # Of this mode.
    policy: ClassVar[type[Any]]
    checkpoint_manager: Any  # a Fan of verl's
    teacher_model_manager: Any

    def __init__(self, config: DictConfig):
        self.sections = read_policies(config)
        self.policies: dict[str, PolicyTrainer] = {}
        # Of the step under way: the rows of each policy are batch[start:end].
        self._spans: dict[str, tuple[int, int]] = {}
        super().__init__(config)

    # --- life cycle -------------------------------------------------------------------------------------------------

    def _setup(self) -> None:
        """What verl's `_setup` does for one policy, for each; data and pools once."""
        self._init_tokenizer()
        self._init_dataloader()
        self._init_dump_executor()
        self._init_resource_pool_mgr()
        self.resource_pool_manager.max_colocate_count = max(COLOCATED, len(self.sections))
        self.resource_pool_manager.create_resource_pool()
        for name, section in self.sections.items():
            own = policy_config(self.config, name, self.total_training_steps)
            self.policies[name] = self.policy(name, section, own, self)
            self.policies[name]._setup()
        trains = [name for name, section in self.sections.items() if not section.frozen]
        actors = {name: policy.actor_rollout_wg for name, policy in self.policies.items()}
        self.actor_rollout_wg = WorkerGroups(actors, trains, checkpoints.record_of(self.config))
        self.ref_policy_wg = self.actor_rollout_wg
        if self.use_critic:
            self.critic_wg = WorkerGroups({n: self.policies[n].critic_wg for n in trains}, trains)
        first = next(iter(self.policies.values()))
        self.reward_loop_manager, self.teacher_model_manager = first.reward_loop_manager, first.teacher_model_manager
        self.distillation_config = first.distillation_config
        managers: Any = Fan({name: policy.checkpoint_manager for name, policy in self.policies.items()})
        self.checkpoint_manager = managers
        self._setup_rollouts()
        self._load_checkpoint()

    def _setup_rollouts(self) -> None:
        """Set up what the mode has beside the training."""

    def _init_tokenizer(self) -> None:
        """The data set measures prompts with the tokenizer of the first policy."""
        own = policy_config(self.config, next(iter(self.sections)))
        model = omega_conf_to_dataclass(own.actor_rollout_ref.model)
        self.tokenizer, self.processor = model.tokenizer, model.processor

    @property
    def several(self) -> bool:
        """Whether there are several: the metrics of one alone have the names that they have without `mas.policies`."""
        return len(self.policies) > 1

    def _set_loss(self) -> None:
        for policy in self.policies.values():
            policy._set_loss()

    def get_llm_client(self) -> Any:
        """verl's client of each policy's servers."""
        return {name: policy.get_llm_client() for name, policy in self.policies.items()}

    def _rollout_server_managers(self) -> list[Any]:
        return [manager for policy in self.policies.values() for manager in policy._rollout_server_managers()]

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> KVBatchMeta:
        """As in our trainer; then the policies end the step, too."""
        batch = super().step(metrics, timing_raw)
        for policy in self.policies.values():
            policy.end()
        return batch

    # --- the step -----------------------------------------------------------------------------------------------------

    def _spread(self, batch: KVBatchMeta, metrics: dict[str, Any], **kwargs: Any) -> KVBatchMeta:
        """Divide the rows among the policies of their agents; each pads and balances its own."""
        rows: dict[str, list[int]] = {name: [] for name in self.policies}
        for row, tag in enumerate(unpack(batch.tags)):
            rows[tag["policy"]].append(row)
        parts = {}
        for name, policy in self.policies.items():
            own: dict[str, Any] = {}
            parts[name] = policy.begin(self.now, chosen(batch, rows[name]), own)
            self._take(policy, own, metrics)
        start, self._spans = 0, {}
        for name, part in parts.items():
            self._spans[name] = (start, start + len(part))
            start += len(part)
        for key in ("update/rows", "update/padding_rows"):
            self.now.metrics[key] = sum(policy.now.metrics[key] for policy in self.policies.values())
        return _joined(list(parts.values()))

    def _each(self, method: str, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Call a method of every policy that has rows, with its rows; returns all rows again."""
        parts = []
        for name, (start, end) in self._spans.items():
            if start < end:
                own: dict[str, Any] = {}
                parts.append(getattr(self.policies[name], method)(chosen(batch, range(start, end)), own))
                self._take(self.policies[name], own, metrics)
        return _joined(parts)

    def _take(self, policy: PolicyTrainer, own: dict[str, Any], metrics: dict[str, Any]) -> None:
        """Where there is one policy, its metrics are the run's."""
        (policy.now.metrics if self.several else metrics).update(own)

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        return self._each("_compute_old_log_prob", batch, metrics)

    def _compute_ref_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        return self._each("_compute_ref_log_prob", batch, metrics)

    def _compute_values(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        return self._each("_compute_values", batch, metrics)

    def _update_critic(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        return self._each("_update_critic", batch, metrics)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        return self._each("_update_actor", batch, metrics)

    # --- weights and metrics ------------------------------------------------------------------------------------------

    def _weights(self, tags: list[Tag]) -> Tensor:
        return torch.cat(
            [super(MultiPolicyTrainer, self)._weights(tags[a:b]) for a, b in self._spans.values() if a < b]
        )

    def _examine(self, batch: KVBatchMeta, columns: Columns, weights: Tensor) -> Tensor:
        sent = []
        for name, (start, end) in self._spans.items():
            if start < end:
                part, policy = chosen(batch, range(start, end)), self.policies[name]
                own = {key: _rows_of(columns[key], start, end) for key in EXAMINED if key in columns}
                sent.append(policy._examine(part, own, weights[start:end]))
        self.now.metrics[RESTING] = sum(policy.now.metrics.get(RESTING, 0) for policy in self.policies.values())
        return torch.cat(sent)

    def _add_ours(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> None:
        for name, policy in self.policies.items():
            prefix = f"{PREFIX}/{name}/" if self.several else ""
            self.now.metrics |= {f"{prefix}{key}": value for key, value in policy.now.metrics.items()}
        if self.several:
            own = [policy.now.metrics.get("doctor/seconds", 0.0) for policy in self.policies.values()]
            self.now.metrics["doctor/seconds"] = sum(own)
        super()._add_ours(metrics, timing_raw)


def _joined(parts: list[KVBatchMeta]) -> KVBatchMeta:
    full = [part for part in parts if len(part)]
    return KVBatchMeta(
        partition_id=full[0].partition_id,
        keys=[key for part in full for key in part.keys],
        tags=[tag for part in full for tag in part.tags],
        fields=full[0].fields,
        extra_info=full[0].extra_info,
    )


def _rows_of(column: Any, start: int, end: int) -> Tensor:
    """Rows [start, end) of a jagged column (N, j)."""
    offsets = column.offsets()
    values = column.values()[offsets[start] : offsets[end]]
    return torch.nested.nested_tensor_from_jagged(values, offsets[start : end + 1] - offsets[start])
