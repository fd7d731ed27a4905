"""Our algorithms as advantage estimators of verl."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est

from verl_ext.algorithms import ALGORITHMS, Rows

# verl hands an estimator the rewards, the mask and one index per row, nothing else. The trainer leaves the rows' tags
# here for the time of the call; both run in the same thread of the same process.
_TAGS: ContextVar[list[dict[str, Any]]] = ContextVar("tags")


@contextmanager
def tags_of_batch(tags: list[dict[str, Any]]) -> Iterator[None]:
    """Make the batch's tags (row order) visible to our estimators."""
    token = _TAGS.set(tags)
    try:
        yield
    finally:
        _TAGS.reset(token)


def live_tags(tags: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tags without those of padding rows."""
    return [tag for tag in tags if not tag.get("is_padding", False)]


def live_rows(tags: list[dict[str, Any]]) -> torch.Tensor:
    """(N,) bool, False on the padding rows that verl adds."""
    return torch.tensor([not tag.get("is_padding", False) for tag in tags])


def numbered(values: list[Any]) -> torch.Tensor:
    """(N,) int64: equal values get equal numbers, in order of first appearance."""
    numbers: dict[Any, int] = {}
    return torch.tensor([numbers.setdefault(value, len(numbers)) for value in values], dtype=torch.int64)


def column(tags: list[dict[str, Any]], name: str) -> torch.Tensor:
    """(N,) int64 numbering of one tag over the batch."""
    return numbered([tag[name] for tag in tags])


def _estimator(algorithm: Callable[[Rows, Any], torch.Tensor]) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    def estimate(
        token_level_rewards: torch.Tensor, response_mask: torch.Tensor, config: Any = None, **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tags = _TAGS.get()
        live = live_rows(tags)
        kept = live_tags(tags)
        names = ("group", "agent", "question", "trajectory")
        rows = Rows(token_level_rewards[live], response_mask[live], **{name: column(kept, name) for name in names})
        advantages = torch.zeros_like(token_level_rewards)
        advantages[live] = algorithm(rows, config).to(advantages.dtype)
        return advantages, advantages

    return estimate


def register_estimators() -> None:
    """Make every algorithm available as `algorithm.adv_estimator=<name>`; those that already are stay."""
    for name, algorithm in ALGORITHMS.items():
        if name not in ADV_ESTIMATOR_REGISTRY:
            register_adv_est(name)(_estimator(algorithm))
