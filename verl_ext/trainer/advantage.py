"""Our algorithms as advantage estimators of verl."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est

from verl_ext.algorithms import ALGORITHMS, Rows
from verl_ext.trainer.preflight.algorithm import has_state, own_options

# verl hands an estimator the rewards, the mask and one index per row, nothing else. The trainer leaves the rows' tags
# and the algorithm's options here for the time of the call; both run in the same thread of the same process.
_BATCH: ContextVar[tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]] = ContextVar("batch")


@contextmanager
def batch_of(
    tags: list[dict[str, Any]], options: dict[str, Any], state: dict[str, Any] | None = None
) -> Iterator[None]:
    """Make the batch's tags (row order), `mas.advantage` and the algorithm's state visible to our estimators."""
    token = _BATCH.set((tags, options, {} if state is None else state))
    try:
        yield
    finally:
        _BATCH.reset(token)


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


def rows_of(rewards: torch.Tensor, mask: torch.Tensor, tags: list[dict[str, Any]]) -> Rows:
    """What an algorithm sees of a batch without padding rows.

    Args:
        rewards, mask: (N, T), of those rows.
        tags: N.
    """
    names = ("group", "agent", "question", "trajectory")
    actions = torch.zeros(mask.shape, dtype=torch.bool)
    for row, tag in enumerate(tags):
        for start, stop in tag["actions"]:
            actions[row, start:stop] = True
    reported = dict.fromkeys(name for tag in tags for name in tag["metrics"])
    return Rows(
        rewards,
        mask,
        **{name: column(tags, name) for name in names},
        actions=actions & mask.bool(),
        decides=torch.tensor([tag["decides"] for tag in tags]),
        outcome=torch.tensor([tag["outcome"] for tag in tags], dtype=torch.float64),
        length=torch.tensor([tag["response_len"] for tag in tags]),
        metrics={
            name: torch.tensor([tag["metrics"].get(name, math.nan) for tag in tags], dtype=torch.float64)
            for name in reported
        },
    )


def _estimator(algorithm: Callable[..., torch.Tensor]) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    def estimate(
        token_level_rewards: torch.Tensor, response_mask: torch.Tensor, config: Any = None, **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tags, options, state = _BATCH.get()
        live = live_rows(tags)
        rows = rows_of(token_level_rewards[live], response_mask[live], live_tags(tags))
        advantages = torch.zeros_like(token_level_rewards)
        keeps = {"state": state} if has_state(algorithm) else {}
        advantages[live] = algorithm(rows, config, **own_options(algorithm, options), **keeps).to(advantages.dtype)
        return advantages, advantages

    return estimate


def register_estimators() -> None:
    """Make every algorithm available as `algorithm.adv_estimator=<name>`; those that already are stay."""
    for name, algorithm in ALGORITHMS.items():
        if name not in ADV_ESTIMATOR_REGISTRY:
            register_adv_est(name)(_estimator(algorithm))
