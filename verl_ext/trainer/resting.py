"""Rows that an update leaves out: without an advantage, a row adds nothing to the gradient of PPO's loss.

Groups without variance give such rows: 12 to 38 % of them in the first steps of the three-agent search.
"""

from __future__ import annotations

import torch
from omegaconf import DictConfig, OmegaConf

from verl_ext.trainer.checksums import Nested
from verl_ext.trainer.config import optimiser_steps
from verl_ext.trainer.row import Tag

# What verl divides the sum over rows by in these modes. Another one divides by the longest row of a micro-batch.
BY_ROWS, BY_TOKENS, BY_NOTHING = ("seq-mean-token-mean", "seq-mean-token-sum"), ("token-mean",), ("token-sum",)


def may_rest(config: DictConfig) -> bool:
    """Whether the gradient comes from advantages alone, in one optimiser step: no KL term, no bonus, no other loss.

    Micro-batches must have any number of rows, and tokens that verl rejects still count in its mean.
    """
    actor = config.actor_rollout_ref.actor
    return not (
        actor.use_kl_loss
        or actor.entropy_coeff
        or actor.policy_loss.loss_mode != "vanilla"
        or actor.loss_agg_mode not in BY_ROWS + BY_TOKENS + BY_NOTHING
        or not actor.use_dynamic_bsz
        or optimiser_steps(config, actor) > 1
        or OmegaConf.select(config, "distillation.enabled")
        or OmegaConf.select(config, "algorithm.rollout_correction.rollout_rs") is not None
    )


def resting(tags: list[Tag], mask: Nested, advantages: Nested, multiple: int) -> torch.Tensor:
    """The rows of which no token trains with an advantage, padding rows among them.

    So many of them do not rest that the others are a multiple of `multiple`, and that each adapter with a token that
    trains keeps one: without any, its optimiser would not step.

    Args:
        tags: N.
        mask, advantages: (N, j) nested; `mask` is 1 where a token trains.
        multiple: ranks × mini-batches, which divides N.

    Returns:
        (N,) bool.
    """
    trains = mask.values().bool()
    tokens, taught = (_sums(some, mask) for some in (trains, trains & (advantages.values() != 0)))
    rests = taught == 0
    working = {tag["adapter"] for tag, idle in zip(tags, rests.tolist(), strict=True) if not idle}
    for row in (rests & (tokens > 0)).nonzero()[:, 0].tolist():
        if tags[row]["adapter"] not in working:
            working.add(tags[row]["adapter"])
            rests[row] = False
    number = int((~rests).sum())
    missing = max(multiple - number, -number % multiple)
    rests[rests.nonzero()[:missing, 0]] = False
    return rests


def weights_without(rests: torch.Tensor, weights: torch.Tensor, mask: Nested, loss_agg_mode: str) -> torch.Tensor:
    """(N,) weights with which the rows that do not rest have loss and gradient of all rows; 0 for the others.

    verl's mean is then one over fewer rows, or over fewer tokens that train.

    Args:
        weights: (N,), of each row in the mean over all.
        mask: (N, j) nested.
    """
    share: float | torch.Tensor = 1.0
    if loss_agg_mode not in BY_NOTHING:
        size = torch.ones_like(weights) if loss_agg_mode in BY_ROWS else _sums(mask.values(), mask).to(weights.dtype)
        share = size[~rests].sum() / size.sum()
    return torch.where(rests, 0.0, weights * share)


def _sums(values: torch.Tensor, like: Nested) -> torch.Tensor:
    """(N,) float64: of the values of each row."""
    rows = torch.repeat_interleave(torch.arange(like.shape[0]), like.offsets().diff())
    return torch.zeros(like.shape[0], dtype=torch.float64).index_add(0, rows, values.double())
