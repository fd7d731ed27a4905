"""Puppeteer: REINFORCE for decisions on who acts next, by returns that hold the cost of what follows.

Source: "Multi-Agent Collaboration via Evolving Orchestration", Section 2.2, Eqs. 5 and 6. The returns R_t (Eq. 6) are
credit: `mas.credit.returns`, verl_ext/mas/returns.py.
"""

from __future__ import annotations

from typing import Any

import torch

from verl_ext.algorithms.groups import group_normalise
from verl_ext.algorithms.rows import Rows

BASELINES = ("none", "mean", "group")


def advantages(
    rows: Rows, config: Any, *, baseline: str = "group", momentum: float = 0.9, state: dict[str, float]
) -> torch.Tensor:
    """Eq. 5 with reward-to-go: A_t = R_t − b on the tokens of a decision; other rows as MHGPO's (Eq. 5 there).

    The paper weighs all of a trajectory's decisions by R(τ) = R_1; R_t leaves out what an earlier decision had cost,
    which changes the variance of the gradient, not its expectation. Ablation: `mas.credit.returns.discount=1` and
    price 0 give every decision the same r.

    Other rows are the agents' own outputs, which train only if they are asked to (not in the paper): they compete in
    MHGPO's heterogeneous groups, for the trajectory's reward.

    Args:
        rows: of them `decides` tells decisions from other rows.
        config: verl's `algorithm` section; `norm_adv_by_std_in_grpo` is for the other rows.
        baseline: b. none: 0, the paper's. mean: the running mean of R over all earlier steps' decisions, before the
            first step that step's own. group: the mean of R over the decisions in the same place of the question.
        momentum: of the running mean.
        state: of the algorithm; holds the running mean between steps and in checkpoints.

    Returns:
        (N, T) float32, 0 outside the mask.

    Raises:
        ValueError: unknown baseline, or a momentum out of [0, 1).
    """
    returns, decides = rows.rewards.double().sum(-1), rows.decides
    by_std = bool(config.get("norm_adv_by_std_in_grpo", True)) if config is not None else True
    found = group_normalise(returns, rows.group, by_std=by_std)
    options = {"baseline": baseline, "momentum": momentum, "state": state}
    found[decides] = decision_advantages(returns[decides], rows.group[decides], **options)
    return (found[:, None] * rows.mask).float()


def decision_advantages(
    returns: torch.Tensor,
    group: torch.Tensor,
    *,
    baseline: str = "group",
    momentum: float = 0.9,
    state: dict[str, float],
) -> torch.Tensor:
    """A_t = R_t − b of decisions.

    Args:
        returns: (n,) float64, R_t.
        group: (n,) int64, which decisions were made in the same place of the same question.
        baseline, momentum, state: see `advantages`.

    Returns:
        (n,) float64.

    Raises:
        ValueError: see `advantages`.
    """
    if baseline not in BASELINES or not 0 <= momentum < 1:
        raise ValueError(
            f"mas.advantage: baseline={baseline!r} must be one of {', '.join(BASELINES)}, momentum={momentum} in [0, 1)"
        )
    if baseline == "group":
        return group_normalise(returns, group, by_std=False)
    return returns - (_running_mean(returns, momentum, state) if baseline == "mean" else 0.0)


def _running_mean(returns: torch.Tensor, momentum: float, state: dict[str, float]) -> float:
    """The mean so far, which then takes these in."""
    if not len(returns):
        return state.get("mean_return", 0.0)
    now = returns.mean().item()
    before = state.get("mean_return", now)
    state["mean_return"] = momentum * before + (1 - momentum) * now
    return before
