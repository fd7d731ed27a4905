"""JoyAgents-R1: GRPO at every node of a trajectory, of which only those with the largest reward variance are updated.

Source: "JoyAgents-R1: Joint Evolution Dynamics for Versatile Multi-LLM Agents with Reinforcement Learning", Section 3.2
and Eqs. 2 to 5. Sampling is strategy `nmc`; the efficiency term of Eq. 3 is `mas.credit.efficiency`.
"""

from __future__ import annotations

from statistics import pvariance
from typing import Any

import torch

from verl_ext.algorithms.groups import group_normalise
from verl_ext.algorithms.rows import Rows

SCOPES = ("question", "batch")


def advantages(rows: Rows, config: Any) -> torch.Tensor:
    """Eq. 5: A = (r − mean of its node's rewards) / std of them, on every response token.

    The standard deviation is the unbiased one with ε = 1e-6, as in verl's GRPO; the paper does not say which. A node
    with one sample, or without variance, gives 0.

    Args:
        rows: a node's samples have the same group (strategy `nmc`).
        config: verl's `algorithm` section, of which nothing is used.

    Returns:
        (N, T) float32, 0 outside the mask.
    """
    relative = group_normalise(rows.rewards.double().sum(-1), rows.group)
    return (relative[:, None] * rows.mask).float()


def select(
    reward: torch.Tensor, group: torch.Tensor, question: torch.Tensor, *, top_k: int = 5, per: str = "question"
) -> torch.Tensor:
    """Eq. 2: the rows of the K nodes with the largest Var(R_i) of each question; the others are not trained on.

    Var is the population variance. Of equal ones the node that comes first is taken. A node without variance has no
    gradient and is never kept.

    Args:
        reward, group, question: (N,).
        top_k: K; 0 keeps every node (the paper's "Top-All"), also those without variance.
        per: "question" as in the paper; "batch": the K · (number of questions) nodes of largest variance of the batch.

    Returns:
        (N,) bool.

    Raises:
        ValueError: K is negative, or an unknown scope.
    """
    if top_k < 0 or per not in SCOPES:
        raise ValueError(
            f"mas.advantage: top_k={top_k} must be at least 0 (all), per={per!r} one of {', '.join(SCOPES)}"
        )
    if top_k == 0:
        return torch.ones(len(group), dtype=torch.bool)
    variance, slot = group_variance(reward, group)
    owner = torch.zeros(len(variance), dtype=torch.int64).scatter(0, slot, question)
    quota = {int(q): top_k for q in owner.unique()}
    if per == "batch":
        owner, quota = torch.zeros_like(owner), {0: top_k * len(quota)}
    first = torch.full((len(variance),), len(slot)).scatter_reduce(0, slot, torch.arange(len(slot)), "amin")
    kept = torch.zeros(len(variance), dtype=torch.bool)
    for node in sorted(range(len(variance)), key=lambda i: (-variance[i].item(), first[i].item())):
        of = int(owner[node])
        if quota[of] and variance[node] > 0:
            quota[of] -= 1
            kept[node] = True
    return kept[slot]


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
