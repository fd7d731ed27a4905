"""Puppeteer: REINFORCE for decisions on who acts next, by returns that hold the cost of what follows.

Source: "Multi-Agent Collaboration via Evolving Orchestration", Section 2.2, Eqs. 5 and 6.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any, Literal

import torch
from pydantic import Field

from verl_ext.algorithms.base import Algorithm, CreditRule
from verl_ext.algorithms.groups import group_normalise
from verl_ext.algorithms.mhgpo import MHGPO
from verl_ext.algorithms.rows import TokenRows
from verl_ext.mas.types import Call, Trajectory, ancestors
from verl_ext.settings import Settings


class Returns(Settings):
    """`mas.credit.returns`, Eq. 6: R_T = r − λ C_T; R_t = γ R_{t+1} − λ C_t, C_t = F_t · log(1 + t/φ), t from 1.

    F_t is what step t cost: generated tokens, each times its agent's `cost`, of the decision and of all calls up to the
    next one, in units of `unit` tokens. (The paper says "FLOPs or token-level metrics" and leaves the unit open.)

    Attributes:
        price: λ.
        discount: γ.
        steps: φ, the steps that a trajectory may take.
        unit: tokens that cost F = 1; the price of a token at step t is λ log(1 + t/φ) / unit.
        weigh_by: what stands beside ∇ log π(a_t | S_t) in Eq. 5. step: R_t, what follows the decision (reward-to-go).
            trajectory: R(τ) = R_1, that of the first decision before it, as the paper writes it. As nothing that came
            before a decision depends on it, E[∇ log π(a_t) R_1] = γ^(t−1) E[∇ log π(a_t) R_t]: for γ = 1 the gradients
            have the same expectation, and R_t has the lower variance; for γ < 1 R_1 gives late decisions less weight.
    """

    price: float = Field(0.1, ge=0)
    discount: float = Field(0.99, ge=0, le=1)
    steps: int = Field(4, ge=1)
    unit: float = Field(1000.0, gt=0)
    weigh_by: Literal["step", "trajectory"] = "step"

    def cost(self, step: int, tokens: float) -> float:
        """C_t of a step, from 1, that cost so many tokens."""
        return tokens / self.unit * math.log1p(step / self.steps)

    def of_trajectory(self, trajectory: Trajectory) -> dict[Call, float]:
        """R_t of each decision of a finished trajectory, or (`weigh_by` trajectory) R_1 of each.

        A call belongs to the last decision before it, along the call graph; a decision's step follows that of the last
        decision before it. After a decision from which branches with decisions of their own depart, R_{t+1} is their
        mean. A decision that gave no text, or from which nothing leads to the trajectory's end, is no step.
        """
        leading = ancestors(trajectory.sinks)
        step_of: dict[Call, Call | None] = {}
        first: dict[Call, Call] = {}
        number: dict[Call, int] = {}
        tokens: dict[Call, float] = defaultdict(float)
        following: dict[Call, list[Call]] = defaultdict(list)
        for call in trajectory.calls:  # by depth: parents come first
            above = [step for parent in call.parents if (step := step_of.get(parent)) is not None]
            latest = max(above, key=lambda step: (number[step], step.id), default=None)
            if call.decides and call.status.trainable and call in leading:
                number[call] = number[latest] + 1 if latest else 1
                first[call] = first[latest] if latest else call
                if latest:
                    following[latest].append(call)
                latest = call
            step_of[call] = latest
            if latest:
                tokens[latest] += call.cost
        returns: dict[Call, float] = {}
        for call in sorted(number, key=lambda call: -number[call]):
            after = [returns[other] for other in following[call]]
            future = self.discount * fmean(after) if after else trajectory.reward
            returns[call] = future - self.price * self.cost(number[call], tokens[call])
        return returns if self.weigh_by == "step" else {call: returns[first[call]] for call in number}

    def apply(self, trajectories: Sequence[Trajectory]) -> None:
        """R_shared of a decision: R_t (or R_1), a mean over the trajectories that share it. Others keep theirs."""
        found: dict[Call, list[float]] = defaultdict(list)
        for trajectory in trajectories:
            for call, value in self.of_trajectory(trajectory).items():
                found[call].append(value)
        for call, values in found.items():
            call.reward_shared = fmean(values)
            call.reward = call.reward_shared + call.reward_specific


def returns_rule(section: Any) -> CreditRule:
    """The credit rule of `mas.credit.returns`; raises ValueError for an unknown key or a value out of range."""
    return Returns.read(section, "mas.credit.returns").apply


class Puppeteer(Algorithm):
    """Eq. 5: A_t = R − b on the tokens of a decision.

    R is R_t, or with `mas.credit.returns.weigh_by=trajectory` the paper's R(τ); `Returns` says how they differ.
    Ablation: `mas.credit.returns.discount=1` and price 0 give every decision the same r.

    Other rows are the agents' own outputs, which train only if they are asked to (not in the paper): they compete in
    MHGPO's heterogeneous groups, for the trajectory's reward.

    Attributes:
        baseline: b. none: 0, the paper's. mean: the running mean of R over all earlier steps' decisions, before the
            first step that step's own. group: the mean of R over the decisions in the same place of the question.
        momentum: of the running mean.
    """

    name = "puppeteer"
    credit = {"returns": returns_rule}

    baseline: Literal["none", "mean", "group"] = "group"
    momentum: float = Field(0.9, ge=0, lt=1)

    def advantages(self, rows: TokenRows, config: Any) -> torch.Tensor:
        """A of every row's tokens: Eq. 5 where the row `decides`, MHGPO's Eq. 5 elsewhere."""
        advantages, decides = MHGPO().advantages(rows, config), rows.decides
        returns = rows.rewards.double().sum(-1)[decides]
        relative = self.head_advantages(returns, rows.group[decides], self.state)
        advantages[decides] = (relative[:, None] * rows.mask[decides]).float()
        return advantages

    def head_advantages(self, returns: torch.Tensor, group: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        """A_t = R_t − b of decisions, of the policy and of policy heads; `state` holds the running mean."""
        if self.baseline == "group":
            return group_normalise(returns, group, by_std=False)
        return returns - (_running_mean(returns, self.momentum, state) if self.baseline == "mean" else 0.0)


def _running_mean(returns: torch.Tensor, momentum: float, state: dict[str, Any]) -> float:
    """The mean so far, which then takes these in."""
    if not len(returns):
        return state.get("mean_return", 0.0)
    now = returns.mean().item()
    before = state.get("mean_return", now)
    state["mean_return"] = momentum * before + (1 - momentum) * now
    return before
