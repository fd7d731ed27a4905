"""Rows that an update leaves out: without an advantage, a row adds nothing to the gradient of PPO's loss.

Groups without variance give such rows: a third of all while a system learns, nearly all once it has learned.
"""

from __future__ import annotations

import torch
from omegaconf import DictConfig, OmegaConf

from verl_ext.trainer.checksums import Nested
from verl_ext.trainer.config import optimiser_steps
from verl_ext.trainer.row import Tag


def may_rest(config: DictConfig) -> bool:
    """Whether the gradient comes from advantages alone, in one optimiser step: no KL term, no bonus, no other loss."""
    actor = config.actor_rollout_ref.actor
    return not (
        actor.use_kl_loss
        or actor.entropy_coeff
        or actor.policy_loss.loss_mode != "vanilla"
        or actor.loss_agg_mode == "seq-mean-token-sum-norm"  # divides by the longest row of a micro-batch
        or OmegaConf.select(config, "distillation.enabled")
        or optimiser_steps(config, actor) > 1
    )


def resting(tags: list[Tag], mask: Nested, advantages: Nested, multiple: int) -> torch.Tensor:
    """The rows of which no token trains with an advantage, padding rows among them.

    So many of them do not rest that the others are a multiple of `multiple`, and that each adapter that has a row keeps
    one: without any, its optimiser would not step.

    Args:
        tags: N.
        mask, advantages: (N, j) nested; `mask` is 1 where a token trains.
        multiple: ranks × mini-batches, which divides N.

    Returns:
        (N,) bool.
    """
    owner = torch.repeat_interleave(torch.arange(len(tags)), mask.offsets().diff())
    taught = mask.values().bool() & (advantages.values() != 0)
    rests = torch.zeros(len(tags)).index_add(0, owner, taught.float()) == 0
    working = {tag["adapter"] for tag, idle in zip(tags, rests.tolist(), strict=True) if not idle}
    for row, tag in enumerate(tags):
        if tag["adapter"] not in working and not tag.get("is_padding"):
            working.add(tag["adapter"])
            rests[row] = False
    number = int((~rests).sum())
    missing = max(multiple - number, -number % multiple)
    rests[rests.nonzero()[:missing, 0]] = False
    return rests


def weights_without(rests: torch.Tensor, weights: torch.Tensor, mask: Nested, loss_agg_mode: str) -> torch.Tensor:
    """(N,) weights with which the rows that do not rest have the gradient of all rows; 0 for the others.

    verl's mean is then one over fewer rows (the seq-mean modes), or over fewer tokens that train (token-mean).

    Args:
        weights: (N,), of each row in the mean over all.
        mask: (N, j) nested.
    """
    owner = torch.repeat_interleave(torch.arange(len(rests)), mask.offsets().diff())
    tokens = torch.zeros(len(rests), dtype=weights.dtype).index_add(0, owner, mask.values().to(weights.dtype))
    size = torch.ones_like(weights) if loss_agg_mode.startswith("seq-mean") else tokens
    share = size[~rests].sum() / size.sum()
    return torch.where(rests, 0.0, weights * share)
