"""What is asserted and logged of every training step: that what was sampled is what trains, and with what weight.

`verl_ext doctor RUN` (verl_ext/doctor.py) says in words what it found. An assertion that fails ends the run: a
run that trains the wrong thing looks like a run that learns slowly.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
import torch
import transfer_queue
from omegaconf import DictConfig, OmegaConf
from transfer_queue import KVBatchMeta

from verl_ext.algorithms import row_weights
from verl_ext.engine.policy_names import policy_of, prefix_of
from verl_ext.trainer.batch import live_rows, live_tags, rows_of
from verl_ext.trainer.checksums import Nested, of_assignment
from verl_ext.trainer.loss import ASSIGNED, CHECKSUM
from verl_ext.trainer.row import Tag, unpack
from verl_ext.trainer.row_checks import check_adapters, check_assigned, check_policy_rows, check_tokens, check_weights

# Columns of the rows: name -> (N, j) nested.
Columns = Mapping[str, Nested]


class Doctor:
    """Examines the steps of a run.

    Args:
        config: verl's whole configuration.
        updates: how often the weights have changed after so many steps; None: in each.
    """

    def __init__(self, config: DictConfig, updates: Callable[[int], int] | None = None):
        self.updates = updates or int
        self.mode = str(config.actor_rollout_ref.actor.loss_agg_mode)
        self.kind = str(config.mas.loss.agent_weights)
        self.bypass = bool(OmegaConf.select(config, "algorithm.rollout_correction.bypass_mode"))
        # verl then masks some of the tokens that were sampled.
        self.rejects = OmegaConf.select(config, "algorithm.rollout_correction.rollout_rs") is not None
        self.engine = OmegaConf.select(config, "actor_rollout_ref.rollout.name")
        # "" in a run with one policy.
        self.policy = policy_of(config.actor_rollout_ref.rollout)
        # By number, as `agent_id` of the rows; None: the policy has none.
        self.adapters: list[str] | None = OmegaConf.select(config, "actor_rollout_ref.model.lora.adapters")
        # Of the step under way: the sum of the rows' `of_assignment`.
        self._assigned = 0

    def examine(
        self,
        step: int,
        batch: KVBatchMeta,
        rows: Columns,
        weights: torch.Tensor,
        sent: torch.Tensor,
        rests: torch.Tensor,
    ) -> dict[str, float]:
        """Metrics of the batch of a step before its update; see `examine` below.

        Args:
            rows: response_mask, rollout_log_probs, old_log_probs and advantages of the batch.
            weights: (N,), of all rows in the objective, padding rows included.
            sent: (N,), with which the rows are updated. rests: (N,) bool, which are not (resting.py).
        """
        start = time.perf_counter()
        tags = unpack(batch.tags)
        expected = self.expected(live_tags(tags), len(tags))
        metrics = examine(tags, rows, weights, expected, step, self.bypass, self.updates)
        metrics |= check_adapters(live_tags(tags), self.adapters, step)
        metrics |= check_policy_rows(live_tags(tags), self.policy, step)
        metrics |= weights_compared(self.engine, self.policy)
        known = torch.tensor([tag["checksum"] for tag in tags])
        # Of all rows or of none: if another policy has adapters, the rows of this one have a number, too.
        numbers = [tag["adapter"] for tag in tags]
        adapters = None if None in numbers else torch.tensor(numbers)
        columns = rows["advantages"], rows["response_mask"]
        self._assigned = int(of_assignment(known, sent, *columns, adapters)[~rests].sum())
        return metrics | {"doctor/seconds": time.perf_counter() - start}

    def expected(self, tags: list[Tag], rows: int) -> float:
        """The sum of the rows' weights by the objective, for these rows and so many with padding rows."""
        mean = 1.0 if self.kind == "none" else row_weights()[self.kind].mean(rows_of(tags))
        return mean * (rows if self.mode.startswith("seq-mean") else len(tags))

    def after_update(
        self, step: int, batch: KVBatchMeta, verls: dict[str, Any], ours: dict[str, Any], parts: int
    ) -> dict[str, float]:
        """Check that the tokens of the update are those that were sampled, each with its weight, advantage and adapter.

        Args:
            verls, ours: metrics of the step; the checksums of the loss are taken from verl's.
            parts: ranks × mini-batches: verl's metric is a mean over them, of sums over rows.
        """
        start = time.perf_counter()
        trained, assigned = (verls.pop(f"actor/{name}") * parts for name in (CHECKSUM, ASSIGNED))
        if not self.rejects:
            check_tokens(live_tags(unpack(batch.tags)), trained, step)
            check_assigned(self._assigned, assigned, step)
        found = kl_of_update(verls | ours, ours.get("doctor/version_lag_max", 0.0)) if self.bypass else {}
        found |= {"doctor/tokens_checked": float(not self.rejects)}
        return found | {"doctor/seconds": ours.get("doctor/seconds", 0.0) + time.perf_counter() - start}


def weights_compared(engine: str, policy: str = "") -> dict[str, float]:
    """Metrics: what the weight senders have compared (engine/hf/replica.py, engine/vllm/sender.py).

    Args:
        engine: `rollout.name`.
        policy: whose.
    """
    served = 1.0
    if engine == "vllm":
        served = ray.get(ray.get_actor(f"{prefix_of(engine, policy)}server_0_0").weights_compared.remote())
    elif engine != "hf":
        return {"doctor/weights_compared": 0.0}
    return {"doctor/weights_compared": 1.0, "doctor/weights_served": served}


class _Observed:
    """TransferQueue, as verl's trainer sees it; `columns` are those that it has read and then written."""

    def __init__(self) -> None:
        self.columns: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(transfer_queue, name)

    def kv_batch_get(self, *args: Any, **kwargs: Any) -> Any:
        read = transfer_queue.kv_batch_get(*args, **kwargs)
        self.columns.update(read.items())
        return read

    def kv_batch_put(self, *args: Any, fields: Any = None, **kwargs: Any) -> Any:
        self.columns.update(fields.items())
        return transfer_queue.kv_batch_put(*args, fields=fields, **kwargs)


@contextmanager
def observed_columns() -> Iterator[Columns]:
    """The columns that verl's trainer reads and writes in this block: to read them again costs a hundredth of a step.

    They are from before the way through TransferQueue, so what the loss got is compared with what was written.
    """
    from verl.trainer.ppo.v1 import trainer_base  # imports this module

    module: Any = trainer_base
    module.tq = observed = _Observed()
    try:
        yield observed.columns
    finally:
        module.tq = transfer_queue


def examine(
    tags: list[Tag],
    rows: Columns,
    weights: torch.Tensor,
    expected: float,
    step: int,
    bypass: bool,
    updates: Callable[[int], int] = int,
) -> dict[str, float]:
    """The metrics doctor/* of a batch, and update/weight_*; padding rows do not count.

    Args:
        tags: N.
        rows: N rows.
        weights: (N,) float64, the weight of each row in the loss.
        expected: their sum, by the objective.
        step: number of the training step.
        bypass: the trainer has not computed π_old itself.
        updates: how often the weights have changed after so many steps.

    Raises:
        RuntimeError: the weights do not sum to `expected`.
    """
    total = weights.sum().item()
    check_weights(total, expected, step)
    live, lengths = live_rows(tags), rows["response_mask"].offsets().diff()
    on, owner = rows["response_mask"].values().bool(), torch.repeat_interleave(torch.arange(len(tags)), lengths)
    trained, taught = (
        torch.zeros(len(tags)).index_add(0, owner, some.float())[live]
        for some in (on, on & (rows["advantages"].values() != 0))
    )
    known = torch.tensor([min(tag["versions"]) >= 0 for tag in tags])
    oldest, newest = torch.tensor([[updates(max(version, 0)) for version in tag["versions"]] for tag in tags]).unbind(1)
    lag, span = updates(step - 1) - oldest, newest - oldest + 1
    found = {
        "doctor/mask_coverage": (trained.sum() / lengths[live].sum()).item(),
        "doctor/without_trained_tokens": (trained == 0).double().mean().item(),
        "doctor/without_advantage": (taught == 0).double().mean().item(),
        "doctor/unknown_version": (~known[live]).double().mean().item(),
    }
    if len(lags := lag[live & known]):
        spans = span[live & known]
        found |= {"doctor/version_lag": lags.double().mean().item(), "doctor/version_lag_max": int(lags.max())}
        found |= {"doctor/versions": spans.double().mean().item(), "doctor/versions_max": int(spans.max())}
    if not bypass:
        difference = rows["old_log_probs"].values().double() - rows["rollout_log_probs"].values().double()
        fresh = (known & (lag <= 0))[owner]
        found |= _divergence("numerical", difference[on & fresh]) | _divergence("stale", difference[on & ~fresh])
    shares: dict[str, float] = defaultdict(float)
    for tag, weight in zip(tags, weights.tolist(), strict=True):
        if not tag.get("is_padding"):
            shares[tag["agent"]] += weight / total
    found |= {"update/weight_max": weights[live].max().item(), "update/weight_min": weights[live].min().item()}
    return found | {f"doctor/weight/{agent}": share for agent, share in sorted(shares.items())}


def _divergence(name: str, values: torch.Tensor) -> dict[str, float]:
    """The KL divergence between the policy as the rollout engine computed it and as the trainer does, per token.

    E[exp(d) − d − 1] with d = log π_old − log π_rollout. Where the weights of the last step sampled a row, the two
    should agree, so its divergence is numerical; where older weights did, it is also staleness. Under
    `rollout_correction.bypass_mode` π_old is π_rollout: see `kl_of_update`.

    Args:
        name: of the metrics.
        values: d of some tokens; no metrics if there are none.
    """
    if not len(values):
        return {}
    return {
        f"doctor/kl_{name}": (values.exp() - values - 1).mean().item(),
        f"doctor/log_prob_difference_{name}": values.abs().max().item(),
    }


def kl_of_update(metrics: dict[str, Any], lag: float) -> dict[str, float]:
    """The divergence where the trainer computes its log-probabilities in the update only (`bypass_mode`).

    verl's `actor/ppo_kl` is the mean of log π_rollout − log π of the forward passes, an estimate of the same divergence
    as long as the weights have not changed since: with one optimiser step per training step.

    Args:
        metrics: of the step, verl's and ours.
        lag: the largest number of updates since the weights that sampled a row.
    """
    if metrics.get("update/optimiser_steps") != 1 or "actor/ppo_kl" not in metrics:
        return {}
    return {f"doctor/kl_{'stale' if lag > 0 else 'numerical'}": float(metrics["actor/ppo_kl"])}
