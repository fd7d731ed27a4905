"""Independent sampling (MHGPO, "Independent Sampling (IS)")."""

from __future__ import annotations

import asyncio

from verl_ext.mas.forest import Forest
from verl_ext.sampling.base import Sample, Strategy, by_position, calls_at, chain_calls, fork_on


class IndependentSampling(Strategy):
    """Fork on every agent in turn, each time from a base trajectory of its own; keep only the forked agent's outputs.

    n·G kept samples in n homogeneous groups. Calls for a chain of n: Σ_i [(i − 1) + G(n − i + 1)] (27 for n=3, G=4).
    An agent that its base trajectory never reaches gives no samples. With one base shared by all forks it is node-wise
    Monte Carlo: `mas.sampling.strategy=nmc`.
    """

    async def sample(self, forest: Forest) -> list[Sample]:
        """The G outputs of each forked call."""
        runs = await asyncio.gather(*[fork_on(forest, agent, self.group_size, name=agent) for agent in self.agents])
        return [
            Sample(call, by_position(call)) for trajectories, point in runs for call in calls_at(point, trajectories)
        ]

    def expected_calls(self, length: int) -> float:
        """Σ_i [(i − 1) + G(n − i + 1)]."""
        return sum(chain_calls(position, length, self.group_size) for position in range(1, length + 1))
