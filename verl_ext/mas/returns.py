"""Returns of decisions, with a price on what they set going (Puppeteer, Eq. 6).

Source: "Multi-Agent Collaboration via Evolving Orchestration", Section 2.2.
"""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import fmean

from pydantic import Field

from verl_ext.mas.types import Call, Trajectory
from verl_ext.settings import Settings


class Returns(Settings):
    """Eq. 6: R_T = r − λ C_T; R_t = γ R_{t+1} − λ C_t, with C_t = F_t · log(1 + t/φ), t from 1.

    F_t is what step t cost: generated tokens, each times its agent's `cost`, of the decision and of all calls up to the
    next one, in units of `unit` tokens. (The paper says "FLOPs or token-level metrics" and leaves the unit open.)

    Attributes:
        price: λ.
        discount: γ.
        steps: φ, the steps that a trajectory may take.
        unit: tokens that cost F = 1; the price of a token at step t is λ log(1 + t/φ) / unit.
    """

    price: float = Field(0.1, ge=0, description="0: free")
    discount: float = Field(0.99, ge=0, le=1)
    steps: int = Field(4, ge=1)
    unit: float = Field(1000.0, gt=0, description="tokens")

    def cost(self, step: int, tokens: float) -> float:
        """C_t of a step, from 1, that cost so many tokens."""
        return tokens / self.unit * math.log1p(step / self.steps)


def decision_returns(trajectory: Trajectory, rule: Returns) -> dict[Call, float]:
    """R_t of each decision of a finished trajectory.

    A call belongs to the last decision before it, along the call graph; a decision's step follows that of the last
    decision before it. After a decision from which branches with decisions of their own depart, R_{t+1} is their mean.
    """
    step_of: dict[Call, Call | None] = {}
    number: dict[Call, int] = {}
    tokens: dict[Call, float] = defaultdict(float)
    following: dict[Call, list[Call]] = defaultdict(list)
    for call in trajectory.calls:  # by depth: parents come first
        above = [step for parent in call.parents if (step := step_of.get(parent)) is not None]
        latest = max(above, key=lambda step: (number[step], step.id), default=None)
        if call.decides:
            number[call] = number[latest] + 1 if latest else 1
            if latest:
                following[latest].append(call)
            latest = call
        step_of[call] = latest
        if latest:
            tokens[latest] += call.cost
    found: dict[Call, float] = {}
    for call in sorted(number, key=lambda call: -number[call]):
        after = [found[other] for other in following[call]]
        future = rule.discount * fmean(after) if after else trajectory.reward
        found[call] = future - rule.price * rule.cost(number[call], tokens[call])
    return found
