"""Numbers below 2^32 by which the trainer and the training processes compare rows; see doctor.py.

Equal rows have equal numbers on every device. Their sum over a batch does not depend on order, padding and splits.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict

from verl_ext.engine.lora.adapters import numbers_of

# A nested tensor: torch's types do not have its methods.
Nested = Any


def of_tokens(tokens: torch.Tensor, trains: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Of the tokens of each row, in their places, and of its mask.

    Args:
        tokens: (n,) int64, the token ids of all rows, prompt and response.
        trains: (n,) int64, 1 where the token trains, 0 where it does not, 2 in a prompt.
        lengths: (B,) int64, tokens of each row.

    Returns:
        (B,) int64.
    """
    rows, places = _rows_and_places(lengths)
    each = _mixed((tokens * 3 + trains) * 2654435761 + places * 40503)
    return _mixed(torch.zeros_like(lengths).index_add(0, rows, each))


def of_assignment(
    known: torch.Tensor, weights: torch.Tensor, advantages: Nested, mask: Nested, adapters: torch.Tensor | None
) -> torch.Tensor:
    """Of weight, advantages and adapter with which each row trains; 0 where no token of the row trains.

    Args:
        known: (B,) int64, `of_tokens`: the same numbers on another row give another result.
        weights: (B,), of the rows in the loss.
        advantages, mask: (B, j) nested; advantages of tokens that do not train do not count.
        adapters: (B,) int64, number of the adapter that the row trains; None: the policy has none.

    Returns:
        (B,) int64.
    """
    lengths, on = mask.offsets().diff(), mask.values().bool()
    rows, places = _rows_and_places(lengths)
    each = _mixed(_bits(advantages.values()) * 2654435761 + places * 40503) * on
    sums = torch.zeros_like(known).index_add(0, rows, each)
    known = known if adapters is None else _mixed(known + (adapters.to(known.device) + 2) * 2246822519)
    return _mixed(_mixed(known * 40503 + _bits(weights) * 2654435761) + sums) * _any(on, rows, known)


def of_batch(data: TensorDict, weights: torch.Tensor) -> tuple[int, int]:
    """The sums of `of_tokens`, without rows in which no token trains, and of `of_assignment` over a micro-batch.

    Args:
        data: as the loss gets it, from what the model is fed.
        weights: (B,), of the rows in the loss.
    """
    tokens, mask = data["input_ids"].values(), data["response_mask"]
    lengths, asked = data["input_ids"].offsets().diff(), data["prompts"].offsets().diff()
    rows, places = _rows_and_places(lengths)
    trains = torch.full_like(tokens, 2)
    trains[places >= asked[rows]] = mask.values().to(trains.dtype)
    own = of_tokens(tokens.long(), trains.long(), lengths)
    own = own * _any(mask.values().bool(), _rows_and_places(mask.offsets().diff())[0], own)
    assigned = of_assignment(own, weights, data["advantages"], mask, numbers_of(data))
    one, other = torch.stack([own.sum(), assigned.sum()]).tolist()
    return one, other


def _rows_and_places(lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each value of rows that lie one behind the other: its row, and its place there."""
    rows = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    return rows, torch.arange(len(rows), device=lengths.device) - (lengths.cumsum(0) - lengths)[rows]


def _any(on: torch.Tensor, rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(like).index_add(0, rows, on.to(like.dtype)) > 0


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.float().contiguous().view(torch.int32).long()


def _mixed(values: torch.Tensor) -> torch.Tensor:
    values = values & 0xFFFFFFFF
    return ((values ^ (values >> 15)) * 2246822519) & 0xFFFFFFFF
