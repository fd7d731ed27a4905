"""Makes our algorithms known to verl as advantage estimators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est

from verl_ext.algorithms import ALGORITHMS, Algorithm
from verl_ext.trainer.batch import live_rows, live_tags, token_rows_of
from verl_ext.trainer.row import Tag

# verl passes an estimator only the rewards, the mask and one index per row. The trainer leaves the rows' tags and its
# algorithm here for the time of the call; both run in the same thread.
_BATCH: ContextVar[tuple[list[Tag], Algorithm]] = ContextVar("batch")


@contextmanager
def batch_of(tags: list[Tag], algorithm: Algorithm) -> Iterator[None]:
    """Make the batch's tags (in row order) and the algorithm visible to `_estimate`."""
    token = _BATCH.set((tags, algorithm))
    try:
        yield
    finally:
        _BATCH.reset(token)


def _estimate(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, config: Any = None, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """verl's interface: (advantages, returns), both (N, T); padding rows get 0."""
    tags, algorithm = _BATCH.get()
    live = live_rows(tags)
    rows = token_rows_of(token_level_rewards[live], response_mask[live], live_tags(tags))
    advantages = torch.zeros_like(token_level_rewards)
    advantages[live] = algorithm.advantages(rows, config).to(advantages.dtype)
    return advantages, advantages


def register_estimators() -> None:
    """Make every algorithm available as `algorithm.adv_estimator=<name>`; estimators of that name are kept."""
    for name in ALGORITHMS:
        if name not in ADV_ESTIMATOR_REGISTRY:
            register_adv_est(name)(_estimate)
