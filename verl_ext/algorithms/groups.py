"""Group-relative statistics, vectorised over all groups of a batch."""

from __future__ import annotations

from statistics import pvariance

import torch


def group_normalise(
    values: torch.Tensor, group: torch.Tensor, by_std: bool = True, epsilon: float = 1e-6
) -> torch.Tensor:
    """(value − mean of its group) / (std of its group + epsilon), in float64.

    The standard deviation is the unbiased one (n − 1), as in verl's GRPO, to which this reduces when every group is one
    question. A group of one and a group without variance give exactly 0. NaN or infinite values raise.

    Args:
        values: (N,), any float type.
        group: (N,) integer group of each value; any integers.
        by_std: False only centres.

    Returns:
        (N,) float64.

    Raises:
        ValueError: a value is not finite.
    """
    values = values.double()
    if not torch.isfinite(values).all():
        raise ValueError(f"{int((~torch.isfinite(values)).sum())} of {len(values)} rewards are not finite")
    _, slot = torch.unique(group, return_inverse=True)
    n_groups = int(slot.max()) + 1 if len(slot) else 0
    zeros = values.new_zeros(n_groups)
    count = zeros.index_add(0, slot, torch.ones_like(values))
    mean = zeros.index_add(0, slot, values) / count
    centred = values - mean[slot]
    lowest = zeros.scatter_reduce(0, slot, values, "amin", include_self=False)
    highest = zeros.scatter_reduce(0, slot, values, "amax", include_self=False)
    if by_std:
        variance = zeros.index_add(0, slot, centred.square()) / (count - 1).clamp(min=1)
        centred = centred / (variance.sqrt()[slot] + epsilon)
    return torch.where((highest == lowest)[slot], 0.0, centred)


def group_variance(reward: torch.Tensor, group: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Population variance of each group's rewards, and the group of each row.

    In exact arithmetic, rounded at the end: the same rewards in another order have the same variance, to the last bit.

    Returns:
        (M,) float64, exactly 0 where all rewards are equal; (N,) int64 in [0, M).
    """
    _, slot = torch.unique(group, return_inverse=True)
    members: list[list[float]] = [[] for _ in range(int(slot.max()) + 1 if len(slot) else 0)]
    for place, value in zip(slot.tolist(), reward.double().tolist(), strict=True):
        members[place].append(value)
    return torch.tensor([pvariance(values) for values in members], dtype=torch.float64), slot
