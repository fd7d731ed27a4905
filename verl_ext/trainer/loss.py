"""The actor's loss: verl's PPO loss with a weight per row in every term (MHGPO, Eq. 6)."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import agg_loss, kl_penalty
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding

from verl_ext.trainer.checksums import of_batch

# Metrics: sums over the rows that trained, of the checksums of their tokens, and of their weights, advantages
# and adapters (trainer/doctor.py).
CHECKSUM, ASSIGNED = "checksum", "assigned"
# Field of a row: its weight N / (n · G_k), 0 on padding rows.
WEIGHT = "loss_weight"


def weighted_ppo_loss(
    config: Any, model_output: dict[str, Any], data: TensorDict, dp_group: Any = None
) -> tuple[torch.Tensor, dict[str, Any]]:
    """verl's `ppo_loss` with each row's policy, KL and entropy terms multiplied by the row's weight.

    Policy term: w stands inside the advantage, where the clipped surrogate is positively homogeneous:
    min(r·wÂ, clip(r)·wÂ) = w·min(r·Â, clip(r)·Â) for w > 0. KL and entropy: w multiplies the row's token terms before
    verl's own aggregation, so that with `seq-mean-token-mean` each is 1/n Σ_k 1/G_k Σ_i 1/|o| Σ_t (Eq. 6).

    Args:
        config: actor configuration; `use_kl_loss`, `kl_loss_coef`, `kl_loss_type`, `entropy_coeff` as in verl.
        model_output: `log_probs` (and `entropy`) of the forward pass, nested.
        data: micro-batch with advantages, old_log_probs, response_mask, (ref_log_prob,) and `loss_weight` (B,).

    Returns:
        The loss (a sum over the micro-batch, normalised by the whole mini-batch) and verl's metrics.
    """
    weight = data[WEIGHT].reshape(-1)
    plain = dataclasses.replace(config, use_kl_loss=False, entropy_coeff=0.0)
    advantages = data["advantages"]
    checked = of_batch(data, weight)
    data["advantages"] = advantages * weight[:, None]  # in place: a copy of `data` costs more than this loss
    try:
        loss, metrics = ppo_loss(plain, model_output, data, dp_group=dp_group)
    finally:
        data["advantages"] = advantages

    for name, value in zip((CHECKSUM, ASSIGNED), checked, strict=True):
        metrics[name] = Metric(value=float(value), aggregation=AggregationType.SUM)

    def aggregate(matrix: torch.Tensor) -> torch.Tensor:
        rows = weight.to(matrix.dtype)[:, None] * matrix
        return agg_loss(rows, mask, config.loss_agg_mode, **plain.global_batch_info)

    fields = ["response_mask"] + (["ref_log_prob"] if config.use_kl_loss else [])
    padded = data.select(*fields).to_padded_tensor()
    mask = padded["response_mask"].to(bool)
    if config.use_kl_loss:
        log_prob = no_padding_2_padding(model_output["log_probs"], data)
        divergence = kl_penalty(log_prob, padded["ref_log_prob"], config.kl_loss_type)
        kl_loss = aggregate(divergence)
        loss = loss + config.kl_loss_coef * kl_loss
        metrics["kl_loss"] = Metric(value=kl_loss, aggregation=AggregationType.SUM)
        metrics["kl_coef"] = config.kl_loss_coef
    if config.entropy_coeff and model_output.get("entropy") is not None:
        entropy = aggregate(no_padding_2_padding(model_output["entropy"], data))
        loss = loss - config.entropy_coeff * entropy
    return loss, metrics
