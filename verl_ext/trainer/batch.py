"""From a batch of verl to the `Rows` of an algorithm. TransferQueue's tags hold group, agent, reward, … of each row."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import Any

import torch

from verl_ext.algorithms import Rows, TokenRows

Tag = dict[str, Any]

# What verl reads of a row's tag. Everything else travels as one JSON string under PACKED, because TransferQueue copies
# the tags of a whole batch deeply some thirty times in a step: copies of nested values were 5 % of a tiny step.
OF_VERL = ("status", "prompt_len", "response_len", "seq_len", "global_steps", "min_global_steps", "max_global_steps")
PACKED = "mas"


def pack(tag: Tag) -> Tag:
    """The tag as TransferQueue holds it."""
    of_verl = {name: tag[name] for name in OF_VERL if name in tag}
    return of_verl | {PACKED: json.dumps({name: value for name, value in tag.items() if name not in of_verl})}


def unpack(tags: list[Tag]) -> list[Tag]:
    """The tags as `rollout.rows` made them, from those that TransferQueue holds."""
    return [
        _read(tag.get(PACKED, "{}")) | {name: value for name, value in tag.items() if name != PACKED} for tag in tags
    ]


@lru_cache(16384)  # a step reads each tag about ten times
def _read(packed: str) -> Tag:
    return json.loads(packed)


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
        "decides": torch.tensor([tag["decides"] for tag in tags], dtype=torch.bool),
        "outcome": floats([tag["outcome"] for tag in tags]),
        "length": torch.tensor([tag["response_len"] for tag in tags], dtype=torch.int64),
        "metrics": {name: floats([tag["metrics"].get(name, math.nan) for tag in tags]) for name in reported},
    }
