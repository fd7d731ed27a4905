"""What is asserted and logged of every training step: that what was sampled is what trains, and with what weight.

`verl_ext doctor RUN` (verl_ext/doctor.py) says in words what it found. An assertion that fails ends the run: a
run that trains the wrong thing looks like a run that learns slowly.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

from verl_ext.algorithms import row_weights
from verl_ext.trainer.batch import live_rows, live_tags, rows_of
from verl_ext.trainer.loss import CHECKSUM, WEIGHTS
from verl_ext.trainer.row import Tag, unpack

# Columns of the rows that `examine` reads.
COLUMNS = ("response_mask", "rollout_log_probs", "old_log_probs", "advantages")
# Relative error of the sum of the rows' weights, which are float32 in the loss.
TOLERANCE = 1e-5


class Doctor:
    """Examines the steps of a run.

    Args:
        config: verl's whole configuration.
    """

    def __init__(self, config: DictConfig):
        self.mode = str(config.actor_rollout_ref.actor.loss_agg_mode)
        self.kind = str(config.mas.loss.agent_weights)
        self.bypass = bool(OmegaConf.select(config, "algorithm.rollout_correction.bypass_mode"))
        # verl then masks some of the tokens that were sampled.
        self.rejects = OmegaConf.select(config, "algorithm.rollout_correction.rollout_rs") is not None

    def examine(self, step: int, batch: KVBatchMeta, weights: torch.Tensor) -> dict[str, float]:
        """Metrics of the batch of a step before its update; see `examine` below.

        Args:
            weights: of all rows, padding rows included.
        """
        start = time.perf_counter()
        tags = unpack(batch.tags)
        live = live_rows(tags)
        used, keys = weights[live], [key for key, on in zip(batch.keys, live.tolist(), strict=True) if on]
        rows = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=list(COLUMNS))
        expected = self.expected(live_tags(tags), len(tags))
        metrics = examine(live_tags(tags), rows, used, expected, step, self.bypass)
        metrics |= {"update/weight_max": used.max().item(), "update/weight_min": used.min().item()}
        return metrics | {"doctor/seconds": time.perf_counter() - start}

    def expected(self, tags: list[Tag], rows: int) -> float:
        """The sum of the rows' weights by the objective, for these rows and so many with padding rows."""
        mean = 1.0 if self.kind == "none" else row_weights()[self.kind].mean(rows_of(tags))
        return mean * (rows if self.mode.startswith("seq-mean") else len(tags))

    def after_update(
        self, step: int, batch: KVBatchMeta, verls: dict[str, Any], ours: dict[str, Any], parts: int
    ) -> dict[str, float]:
        """Check that the tokens of the update are those that were sampled.

        Args:
            verls, ours: metrics of the step; the checksum of the loss is taken from verl's.
            parts: ranks × mini-batches: verl's metric is a mean over them, of sums over rows.
        """
        start = time.perf_counter()
        trained, weights = (verls.pop(f"actor/{name}") * parts for name in (CHECKSUM, WEIGHTS))
        tags = live_tags(unpack(batch.tags))
        if not self.rejects:
            check_tokens(tags, trained, step)
        check_weights(weights, self.expected(tags, len(batch)), step)
        found = kl_of_update(verls | ours, ours.get("doctor/version_lag_max", 0.0)) if self.bypass else {}
        found |= {"doctor/tokens_checked": float(not self.rejects)}
        return found | {"doctor/seconds": ours.get("doctor/seconds", 0.0) + time.perf_counter() - start}


def examine(
    tags: list[Tag], rows: TensorDict, weights: torch.Tensor, expected: float, step: int, bypass: bool
) -> dict[str, float]:
    """The metrics doctor/* of a batch without padding rows.

    The KL divergence between the policy as the rollout engine computed it and as the trainer does,
    E[exp(d) − d − 1] with d = log π_old − log π_rollout, is estimated per token. Where the weights of the last step
    sampled a row, the two should agree, so its divergence is numerical; where older weights did, it is also staleness.
    Under `rollout_correction.bypass_mode` π_old is π_rollout: see `kl_of_update`.

    Args:
        tags: N.
        rows: N rows with `COLUMNS`, nested.
        weights: (N,) float64, the weight of each row in the loss.
        expected: their sum, by the objective.
        step: number of the training step.
        bypass: the trainer has not computed π_old itself.

    Raises:
        RuntimeError: the weights do not sum to `expected`.
    """
    total = weights.sum().item()
    check_weights(total, expected, step)
    mask = [values.bool() for values in rows["response_mask"].unbind()]
    lag = [step - 1 - tag["versions"][0] for tag in tags]
    known = [tag["versions"][0] >= 0 for tag in tags]
    found = {
        "doctor/mask_coverage": sum(int(row.sum()) for row in mask) / sum(len(row) for row in mask),
        "doctor/without_trained_tokens": sum(not row.any() for row in mask) / len(mask),
        "doctor/without_advantage": _share_without_advantage(rows, mask),
        "doctor/unknown_version": 1 - sum(known) / len(known),
    }
    lags = [value for value, is_known in zip(lag, known, strict=True) if is_known]
    if lags:
        found |= {"doctor/version_lag": sum(lags) / len(lags), "doctor/version_lag_max": max(lags)}
    fresh = [is_known and value <= 0 for value, is_known in zip(lag, known, strict=True)]
    if not bypass:
        found |= _divergences(rows, mask, fresh)
    shares: dict[str, float] = defaultdict(float)
    for tag, weight in zip(tags, weights.tolist(), strict=True):
        shares[tag["agent"]] += weight / total
    return found | {f"doctor/weight/{agent}": share for agent, share in sorted(shares.items())}


def _share_without_advantage(rows: TensorDict, mask: list[torch.Tensor]) -> float:
    advantages = rows["advantages"].unbind()
    return sum(not own[on].any() for own, on in zip(advantages, mask, strict=True)) / len(mask)


def _divergences(rows: TensorDict, mask: list[torch.Tensor], fresh: list[bool]) -> dict[str, float]:
    """KL of the rows that the last weights sampled, and of the others; each only if there are such rows."""
    found: dict[str, float] = {}
    differences: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    both = zip(rows["old_log_probs"].unbind(), rows["rollout_log_probs"].unbind(), mask, fresh, strict=True)
    for trainer, rollout, on, is_fresh in both:
        differences[is_fresh].append((trainer.double() - rollout.double())[on])
    for is_fresh, name in ((True, "numerical"), (False, "stale")):
        values = torch.cat(differences[is_fresh]) if differences[is_fresh] else torch.zeros(0)
        if len(values):
            found[f"doctor/kl_{name}"] = (values.exp() - values - 1).mean().item()
            found[f"doctor/log_prob_difference_{name}"] = values.abs().max().item()
    return found


def check_weights(total: float, expected: float, step: int) -> None:
    """Compare the sum of the rows' weights with what the objective implies.

    Raises:
        RuntimeError: they differ.
    """
    if abs(total / expected - 1) > TOLERANCE:
        raise RuntimeError(
            f"step {step}: the weights of the rows in the loss sum to {total:.6g}, but in the objective that "
            f"mas.loss.agent_weights states they sum to {expected:.6g}"
        )


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


def check_tokens(tags: list[Tag], trained: float, step: int) -> None:
    """Compare the checksum of the sampled tokens with what the training processes saw in their loss.

    Args:
        tags: of the rows that train.
        trained: the sum of the checksums that the training processes computed.

    Raises:
        RuntimeError: they differ.
    """
    sampled = sum(tag["checksum"] for tag in tags)
    if round(trained) != sampled:
        raise RuntimeError(
            f"step {step}: the tokens of the update are not the tokens that were sampled (checksum {trained:.0f}, "
            f"sampled {sampled}): a row was lost, doubled or changed between rollout and update. This is a defect of "
            "verl_ext or verl, not of your system: please report it with the run's folder"
        )
