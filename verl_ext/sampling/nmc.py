"""Node-wise Monte Carlo sampling (JoyAgents-R1, Section 3.2)."""

from __future__ import annotations

import asyncio

from verl_ext.mas.forest import Forest
from verl_ext.mas.session import Session
from verl_ext.mas.types import CallId, Stream, Trajectory
from verl_ext.sampling.base import Sample, Strategy, by_position, calls_at, chain_calls, fork_at, run_session


class NodeWiseMonteCarlo(Strategy):
    """One base trajectory; at each of its calls, G − 1 further samples continued to the end without further branching.

    The base's own output counts among the G. Kept are the G samples at each node of the base: n homogeneous groups.
    Calls for a chain of n: n + Σ_i (G − 1)(n − i + 1) (21 for n=3, G=4), 1 + Σ(G_i − 1) trajectories
    instead of ΠG_i (the paper's ΣG_i counts the base once per node).
    """

    async def sample(self, forest: Forest) -> list[Sample]:
        """Grow the base; a fork starts as soon as the base has issued its call."""
        base = Session(forest, Stream("0"))
        forks: list[asyncio.Task[list[Trajectory]]] = []
        nodes: list[CallId] = []

        def fork_node(node: CallId | None) -> None:
            if node is not None:
                nodes.append(node)
                forks.append(asyncio.ensure_future(fork_at(forest, base.trajectory.stream, node, self.group_size)))

        base.listeners.append(fork_node)
        try:
            trajectory = await run_session(forest, base)
        except BaseException:
            for fork in forks:
                fork.cancel()
            await asyncio.gather(*forks, return_exceptions=True)
            raise
        continued = await asyncio.gather(*forks)
        samples = []
        for node, trajectories in zip(nodes, continued, strict=True):
            kept = calls_at(node, [trajectory, *trajectories])
            samples += [Sample(call, by_position(call)) for call in kept]
        return samples

    def expected_calls(self, length: int) -> float:
        """n + Σ_i (G − 1)(n − i + 1)."""
        forks = (chain_calls(position, length, self.group_size) - length for position in range(1, length + 1))
        return length + sum(forks)
