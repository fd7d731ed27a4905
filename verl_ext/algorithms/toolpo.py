"""ToolPO: a trajectory's success on all its tokens, its tool calls and memory folds on theirs.

Source: "DeepAgent: A General Reasoning Agent with Scalable Toolsets", Section 3.5, Eqs. 5 to 8.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field

from verl_ext.algorithms.base import Algorithm, RowWeights, System
from verl_ext.algorithms.groups import group_normalise
from verl_ext.algorithms.rows import TokenRows


def fold_preference(length: torch.Tensor, folded: torch.Tensor, question: torch.Tensor) -> torch.Tensor:
    """S_pref = (L(τ_direct) − L(τ_fold)) / (L(τ_direct) + L(τ_fold)) of each trajectory, in (−1, 1).

    The paper compares "a trajectory with folding to one without". Here a folded one is compared with the mean length of
    its question's trajectories without folding. A trajectory without folding has no fold to be judged, and where all of
    a question's trajectories fold there is nothing to compare with: both give 0.

    Args:
        length: (M,) tokens of each trajectory, observations included.
        folded: (M,) bool.
        question: (M,) integers.

    Returns:
        (M,) float64.
    """
    _, slot = torch.unique(question, return_inverse=True)
    zeros = torch.zeros(int(slot.max()) + 1, dtype=torch.float64)
    direct = (~folded).double()
    count = zeros.index_add(0, slot, direct)
    mean = zeros.index_add(0, slot, direct * length) / count.clamp(min=1)
    other = mean[slot]
    preference = (other - length) / (other + length)
    # Both lengths are 0 where no agent of the batch has acted: there is nothing to compare, either.
    return torch.where(folded & (count[slot] > 0) & (other + length > 0), preference, 0.0)


def trajectory_weights(trajectory: torch.Tensor) -> torch.Tensor:
    """Row weights that turn a mean over rows into Eq. 8's mean over trajectories of sums over their tokens.

    Under `seq-mean-token-sum` a batch of N rows averages 1/N Σ_rows Σ_tokens; with w = N / (number of trajectories)
    that is the mean over trajectories, each the sum over all of its tokens, in however many rows they are.

    Args:
        trajectory: (N,) of each row.

    Returns:
        (N,) float64, all the same.
    """
    return torch.full((len(trajectory),), len(trajectory) / len(torch.unique(trajectory)), dtype=torch.float64)


class ToolPO(Algorithm):
    """Eq. 7: A(y_i) = A_succ(τ) + M(y_i) · A_action(τ), each R − its mean over the question's trajectories (Eqs. 5, 6).

    R_succ is the trajectory's reward, R_action = λ1 · Σ_t C(a_call_t) + λ2 · S_pref.

    Attributes:
        lambda_call, lambda_fold: λ1, λ2; the paper's are 1.
        tool_advantage: False leaves out A_action (the paper's ablation "w/o Tool Adv. Attribution").
    """

    name = "toolpo"
    reads = ("correct_calls",)
    row_weights = {
        "trajectory": RowWeights(
            lambda rows: trajectory_weights(rows.trajectory),
            ("seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"),
            "ToolPO's Eq. 8",
            mean=lambda rows: len(rows.trajectory) / len(set(rows.trajectory.tolist())),
        )
    }

    lambda_call: float = Field(1.0, ge=0)
    lambda_fold: float = Field(1.0, ge=0)
    tool_advantage: bool = True

    def check(self, system: System) -> None:
        """All rows of every trajectory must be there.

        Raises:
            ValueError: the strategy shares calls between trajectories, or `correct_calls` is not reported.
        """
        super().check(system)
        if system.strategy != "fof":
            raise ValueError(
                "algorithm.adv_estimator=toolpo needs all rows of every trajectory: their lengths make S_pref, and all "
                f"of them share its advantage. Under mas.sampling.strategy={system.strategy} trajectories share calls, "
                "or a part of them trains. Remedy: mas.sampling.strategy=fof, or adv_estimator=mhgpo"
            )

    def advantages(self, rows: TokenRows, config: Any) -> torch.Tensor:
        """Eq. 7. Statistics are over trajectories: a folded one is several rows, each with the trajectory's advantages,
        and counts once. Not divided by a standard deviation; a question with one trajectory gets 0.

        Args:
            rows: `actions` is M; an agent without any in the batch (the auxiliary role, where it trains) does not count
                in a trajectory's length. `metrics` holds `correct_calls`, Σ_t C(a_call_t), and may hold `folds`. A
                failed trajectory reports neither: it has no correct call and no fold.
            config: not used.

        Raises:
            ValueError: the workflow does not report `correct_calls`.
        """
        correct = rows.metrics.get("correct_calls", torch.zeros_like(rows.outcome))
        if "correct_calls" not in rows.metrics and not rows.failed.all():
            known = ", ".join(rows.metrics) or "nothing"
            raise ValueError(
                "ToolPO needs the number of a trajectory's correct tool calls: let the workflow's `reward` report "
                f"`correct_calls` (it reports {known})"
            )
        _, number = torch.unique(rows.trajectory, return_inverse=True)  # (N,) trajectories from 0

        def of_trajectories(values: torch.Tensor) -> torch.Tensor:  # all rows of a trajectory hold the same value
            return values.new_zeros(int(number.max()) + 1).scatter(0, number, values)

        question = of_trajectories(rows.question)
        success = group_normalise(of_trajectories(rows.outcome), question, by_std=False)
        total = success[number][:, None].expand(rows.mask.shape)
        if self.tool_advantage:
            folds = rows.metrics.get("folds", torch.zeros_like(rows.outcome)).masked_fill(rows.failed, 0.0)
            acting = torch.isin(rows.agent, rows.agent[rows.actions.any(-1)])  # not the rows of a helper that trains
            length = rows.length.new_zeros(len(question)).index_add(0, number, rows.length * acting)
            preference = fold_preference(length, of_trajectories(folds) > 0, question)
            action = (
                self.lambda_call * of_trajectories(correct.masked_fill(rows.failed, 0.0))
                + self.lambda_fold * preference
            )
            total = total + rows.actions * group_normalise(action, question, by_std=False)[number][:, None]
        return (total * rows.mask).float()
