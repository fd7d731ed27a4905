"""JoyAgents-R1: GRPO at the nodes of a trajectory; only the nodes with the largest reward variance train.

Source: "JoyAgents-R1: Joint Evolution Dynamics for Versatile Multi-LLM Agents with Reinforcement Learning", Section 3.2
and Eqs. 2 to 5. Sampling is strategy `nmc`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import Field

from verl_ext.algorithms.base import Algorithm, CreditRule
from verl_ext.algorithms.groups import group_variance
from verl_ext.algorithms.mhgpo import MHGPO
from verl_ext.algorithms.rows import Rows, TokenRows
from verl_ext.mas.credit import first_trajectories
from verl_ext.mas.types import Trajectory


def efficiency(weight: Any) -> CreditRule:
    """`mas.credit.efficiency`: subtract weight · R_E, R_E = (k − j)/k (Eq. 3), from the reward of every call.

    j is the call's position, from 1, among the calls of agents that train in the trajectory in which it was sampled
    first; k is their number.

    Raises:
        ValueError: the weight is not a number of at least 0.
    """
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight < math.inf:
        raise ValueError(f"mas.credit.efficiency={weight!r} must be a finite number of at least 0 (0: off)")

    def charge(trajectories: Sequence[Trajectory]) -> None:
        for call, trajectory in first_trajectories(trajectories).items():
            nodes = [node for node in trajectory.calls if node.trained]
            call.reward -= weight * (len(nodes) - nodes.index(call) - 1) / len(nodes)

    return charge


class JoyAgents(Algorithm):
    """Only the K nodes with the largest reward variance of each question train; each node is a group of GRPO.

    Attributes:
        top_k: K; 0 keeps every node (the paper's "Top-All"), also those without variance.
        per: "question" as in the paper; "batch": the K · (number of questions) nodes of largest variance of the batch.
    """

    name = "joyagents"
    credit = {"efficiency": efficiency}

    top_k: int = Field(5, ge=0)
    per: Literal["question", "batch"] = "question"

    def select(self, rows: Rows) -> torch.Tensor:
        """Eq. 2: the rows of the K nodes with the largest Var(R_i) of each question.

        Var is the population variance. Of equal ones that of the first question is taken, then the one that comes
        first in its trajectory. A node without variance has no gradient and is never kept.

        Returns:
            (N,) bool.
        """
        if self.top_k == 0:
            return torch.ones(len(rows.group), dtype=torch.bool)
        variance, slot = group_variance(rows.reward, rows.group)
        owner = torch.zeros(len(variance), dtype=torch.int64).scatter(0, slot, rows.question)
        question = owner.tolist()
        quota = {int(q): self.top_k for q in owner.unique()}
        if self.per == "batch":
            owner, quota = torch.zeros_like(owner), {0: self.top_k * len(quota)}
        most = torch.full((len(variance),), torch.iinfo(torch.int64).max)
        earliest = most.scatter_reduce(0, slot, rows.position, "amin")
        first = most.scatter_reduce(0, slot, torch.arange(len(slot)), "amin")
        rank = list(zip((-variance).tolist(), question, earliest.tolist(), first.tolist(), strict=True))
        kept = torch.zeros(len(variance), dtype=torch.bool)
        for node in sorted(range(len(variance)), key=rank.__getitem__):
            of = int(owner[node])
            if quota[of] and variance[node] > 0:
                quota[of] -= 1
                kept[node] = True
        return kept[slot]

    def advantages(self, rows: TokenRows, config: Any) -> torch.Tensor:
        """Eq. 5: A = (r − mean of its node's rewards) / std of them: MHGPO's, where the samples of a node are a group.
        The paper does not say which std. A node with one sample, or without variance, gives 0."""
        return MHGPO().advantages(rows, None)
