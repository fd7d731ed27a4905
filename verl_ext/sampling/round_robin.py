"""Round robin (MHGPO, Algorithm 5)."""

from __future__ import annotations

import random
from collections import Counter
from typing import Literal

from pydantic import model_validator

from verl_ext.mas.forest import Forest
from verl_ext.mas.noise import derive_seed
from verl_ext.sampling.base import BATCH, SHUFFLED, Sample, Strategy, by_position, chain_calls, fork_on, unique_calls


class RoundRobin(Strategy):
    """Per question, one fork agent i ~ Categorical(p).

    Agents from i on are grouped per question, as in fork on first. The single rollouts of the agents before i are
    regrouped over the batch: `by_agent` with those of the same agent, turn and fork agent (the paper's text), or
    `shuffle`: all singletons shuffled and cut into groups of G, the remainder dropped (Algorithm 5, lines after "Group
    reassignment"). A system that ends before agent i is reached gives one trajectory; its calls are singletons, too.

    Attributes:
        probabilities: p, one per agent, summing to 1; the paper's is (0.7, 0.1, 0.2). None: uniform.
        regroup: by_agent | shuffle.
    """

    probabilities: list[float] | None = None
    regroup: Literal["by_agent", "shuffle"] = "by_agent"

    @model_validator(mode="after")
    def _check_probabilities(self) -> RoundRobin:
        p = self.weights
        if len(p) != len(self.agents):
            raise ValueError(
                f"mas.sampling.rr.probabilities has {len(p)} values for {len(self.agents)} agents "
                f"({', '.join(self.agents)}): give one per agent"
            )
        if p and not (min(p) >= 0 and abs(sum(p) - 1) <= 1e-6):  # NaN fails, too
            raise ValueError(f"mas.sampling.rr.probabilities={p} must be >= 0 and sum to 1, but sum to {sum(p):.6g}")
        return self

    @property
    def weights(self) -> list[float]:
        """p of each agent; none where no agent trains, as in a validation of served agents."""
        uniform = [1 / len(self.agents) for _ in self.agents]
        return uniform if self.probabilities is None or not self.agents else self.probabilities

    async def sample(self, forest: Forest) -> list[Sample]:
        """Draw the fork agent, a function of the forest's seed, and fork there."""
        draw = random.Random(derive_seed(forest.seed, "round-robin"))
        fork_agent = draw.choices(self.agents, self.weights)[0]
        trajectories, point = await fork_on(forest, fork_agent, self.group_size)
        calls = unique_calls(trajectories)
        sizes = Counter(by_position(call) for call in calls)
        forked_at = fork_agent if point is not None else "none"
        samples = []
        for call in calls:
            group = by_position(call)
            if sizes[group] == 1:
                group = SHUFFLED if self.regroup == "shuffle" else (BATCH, *group, f"fork@{forked_at}")
            samples.append(Sample(call, group))
        return samples

    def expected_calls(self, length: int) -> float:
        """Σ_i p_i [(i − 1) + G(n − i + 1)] for a chain of the agents."""
        return sum(p * chain_calls(position, length, self.group_size) for position, p in enumerate(self.weights, 1))
