"""From the tags of a batch to the `Rows` of an algorithm."""

from __future__ import annotations

import math
from typing import Any

import torch

from verl_ext.algorithms import Rows, TokenRows
from verl_ext.trainer.row import Tag


def live_tags(tags: list[Tag]) -> list[Tag]:
    """The tags without those of padding rows."""
    return [tag for tag in tags if not tag.get("is_padding", False)]


def live_rows(tags: list[Tag]) -> torch.Tensor:
    """(N,) bool, False on the padding rows that verl adds."""
    return torch.tensor([not tag.get("is_padding", False) for tag in tags])


def numbered(values: list[Any]) -> torch.Tensor:
    """(N,) int64: equal values get equal numbers, in order of first appearance."""
    numbers: dict[Any, int] = {}
    return torch.tensor([numbers.setdefault(value, len(numbers)) for value in values], dtype=torch.int64)


def rows_of(tags: list[Tag]) -> Rows:
    """The rows of these tags, without tokens. There must be no padding row among them."""
    return Rows(**_columns(tags))


def token_rows_of(rewards: torch.Tensor, mask: torch.Tensor, tags: list[Tag]) -> TokenRows:
    """The rows of these tags, with their tokens.

    Args:
        rewards, mask: (N, T), without padding rows.
        tags: N.
    """
    actions = torch.zeros(mask.shape, dtype=torch.bool)
    for row, tag in enumerate(tags):
        for start, stop in tag["actions"]:
            actions[row, start:stop] = True
    return TokenRows(**_columns(tags), rewards=rewards, mask=mask, actions=actions & mask.bool())


def _columns(tags: list[Tag]) -> dict[str, Any]:
    def numbers(name: str) -> torch.Tensor:
        return numbered([tag[name] for tag in tags])

    def floats(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)

    reported = dict.fromkeys(name for tag in tags for name in tag["metrics"])
    return {
        "reward": floats([tag["reward"] for tag in tags]),
        "group": numbers("group"),
        "agent": numbers("agent"),
        "question": numbers("question"),
        "trajectory": numbers("trajectory"),
        "position": torch.tensor([tag["order"][-1] for tag in tags], dtype=torch.int64),
        "decides": torch.tensor([tag["decides"] for tag in tags], dtype=torch.bool),
        "failed": torch.tensor([tag["failed"] for tag in tags], dtype=torch.bool),
        "outcome": floats([tag["outcome"] for tag in tags]),
        "length": torch.tensor([tag["response_len"] for tag in tags], dtype=torch.int64),
        "metrics": {name: floats([tag["metrics"].get(name, math.nan) for tag in tags]) for name in reported},
    }
