"""Fork on first (MHGPO, Algorithm 3)."""

from __future__ import annotations

from verl_ext.mas.forest import Forest
from verl_ext.sampling.base import Sample, Strategy, by_position, fork_all, unique_calls


class ForkOnFirst(Strategy):
    """G samples at the entry agent, each continued one-to-one.

    n·G calls, all kept. The group of agent k is its G outputs for the question: homogeneous (same prompt) at the entry,
    heterogeneous downstream. A system that starts with concurrent branches has an entry in each.
    """

    async def sample(self, forest: Forest) -> list[Sample]:
        """All calls of G trajectories."""
        trajectories = await fork_all(forest, self.group_size)
        return [Sample(call, by_position(call)) for call in unique_calls(trajectories)]

    def expected_calls(self, length: int) -> float:
        """n·G."""
        return length * self.group_size
