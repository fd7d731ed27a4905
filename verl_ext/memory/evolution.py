"""Algorithm 1 of JoyAgents-R1 (Section 3.3): how memories evolve by the rewards of the trajectories that used them.

Pure functions of numbers; time is the training step. Per agent and step, `rescore` runs lines 4 to 16 for every
trajectory and then the decay of the memories that none of them recalled. The caller inserts memories (lines 1 to 3) and
removes those that do not survive ("Memory overflow handling"). The paper leaves some points open; they are decided as
follows, with reasons in docs/memory.md:

- σ is the standard deviation of the population, not of a sample.
- Lines 10 and 11 are executed in this order: a refreshed memory has Δt = 0.
- A memory that was recalled by a trajectory within [L, U] keeps its score, without decay.
- If several trajectories recalled the same memory, they change it one after the other, in the order given.
- The decay of the other memories, −|t − t_i|, is added once per step, for any number of questions. Because it is added
  at every step, as in the paper, it sums to n(n + 1)/2 after n steps without recall.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from pydantic import Field

from verl_ext.settings import Settings

Z = 1.96  # the 2.5 % and 97.5 % percentiles of a normal distribution lie at μ ± 1.96σ


class Rules(Settings):
    """The paper's hyperparameters, with its values.

    Attributes:
        alpha: weight of time, per step.
        beta: weight of the reward's distance from its bound.
        threshold: D; a memory whose score is below it is deleted.
        capacity: memories per agent. (The paper gives no number.)
    """

    alpha: float = Field(1.0, ge=0, description="0: no decay")
    beta: float = Field(1.0, ge=0)
    threshold: float = 0.0
    capacity: int = Field(10_000, ge=1, description="memories of an agent")


class Bounds(NamedTuple):
    """L and U of a question: rewards outside of them change memories."""

    lower: float
    upper: float


@dataclass(frozen=True)
class Trial:
    """One agent's part in one trajectory, as input of Algorithm 1.

    Attributes:
        reward: R_M of the trajectory.
        bounds: of its question.
        rows: (n,) positions of the recalled memories, each once.
        shares: their s_i; empty if the reward lies within the bounds.
    """

    reward: float
    bounds: Bounds
    rows: np.ndarray
    shares: Sequence[float] = ()


def bounds(rewards: Sequence[float]) -> Bounds:
    """L = μ − 1.96σ and U = μ + 1.96σ of the R_M of a question's trajectories ("Adaptive reward thresholding").

    Computed exactly and rounded at the end: equal rewards have σ = 0 and equal bounds, so that none lies outside. No
    reward is further from the mean than σ·sqrt(G − 1), so that none of fewer than five rewards lies outside.

    Raises:
        ValueError: no rewards.
    """
    if not rewards:
        raise ValueError("bounds need the reward of at least one trajectory; leave questions without any out.")
    exact = [Fraction(reward) for reward in rewards]
    mean = sum(exact) / len(exact)
    variance = sum((reward - mean) ** 2 for reward in exact) / len(exact)
    spread = Z * math.sqrt(float(variance))
    return Bounds(float(mean) - spread, float(mean) + spread)


def outside(reward: float, limits: Bounds) -> int:
    """1: R_M > U (line 1: the trajectory becomes a memory), -1: R_M < L, 0: neither."""
    return (reward > limits.upper) - (reward < limits.lower)


def softmax(similarities: Sequence[float]) -> list[float]:
    """Line 7: shares s_i of the recalled memories; they sum to 1."""
    largest = max(similarities, default=0.0)
    weights = [math.exp(similarity - largest) for similarity in similarities]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def rescore(
    times: np.ndarray, scores: np.ndarray, step: int, trials: Sequence[Trial], rules: Rules
) -> tuple[np.ndarray, np.ndarray]:
    """Lines 4 to 16 for each trial in turn, then the decay of the memories that no trial recalled.

    Args:
        times: (n,) int64, t_i of the agent's memories. scores: (n,) float64, their R_Mi.
        step: t, later than all of `times`.
        trials: of this agent in this step.

    Returns:
        New times and scores.
    """
    times, scores = times.copy(), scores.copy()
    recalled = np.zeros(len(times), dtype=bool)
    for trial in trials:
        rows, side = trial.rows, outside(trial.reward, trial.bounds)
        recalled[rows] = True
        if side > 0:
            times[rows] = step  # line 10, before line 11
            gain = np.array(trial.shares) * abs(trial.reward - trial.bounds.upper)  # Δs, line 11
        elif side < 0:
            gain = -np.array(trial.shares) * abs(trial.reward - trial.bounds.lower)  # Δs, line 13
        else:
            continue
        age = -np.abs(step - times[rows])  # Δt
        scores[rows] = scores[rows] + rules.alpha * age + rules.beta * gain  # line 15
    rest = ~recalled
    scores[rest] += rules.alpha * -np.abs(step - times[rest])
    return times, scores


def survivors(ids: np.ndarray, times: np.ndarray, scores: np.ndarray, rules: Rules) -> tuple[np.ndarray, int, int]:
    """Memory overflow handling: which of an agent's memories stay.

    Memories with a score below D are deleted. Of the others the best `capacity` stay, ranked by score, then by later
    time, then by higher id.

    Returns:
        (n,) bool, True for those that stay; the number deleted below D; the number deleted beyond the capacity.
    """
    stays = ~(scores < rules.threshold)
    low = len(stays) - int(stays.sum())
    surplus = max(0, int(stays.sum()) - rules.capacity)
    if surplus:
        living = np.flatnonzero(stays)
        order = np.lexsort((ids[living], times[living], scores[living]))
        stays[living[order[:surplus]]] = False
    return stays, low, surplus
