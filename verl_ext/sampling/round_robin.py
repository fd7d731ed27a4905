"""Round robin (MHGPO, Algorithm 5)."""

from __future__ import annotations

import random
from collections import Counter

from verl_ext.mas.forest import Forest
from verl_ext.mas.noise import derive_seed
from verl_ext.sampling.base import BATCH, Formula, Sample, Strategy, by_position, fork_on, position_of, unique_calls

REGROUPS = ("by_agent", "shuffle")
# Group key of the singletons that the trainer shuffles and cuts into groups of G over the whole batch.
SHUFFLED = (BATCH, "shuffled")


class RoundRobin(Strategy):
    """Per question, one fork agent i ~ Categorical(p).

    Agents from i on are grouped per question, as in fork on first. The single rollouts of the agents before i are
    regrouped over the batch: `by_agent` with those of the same agent, turn and fork agent (the paper's text), or
    `shuffle`: all singletons shuffled and cut into groups of G, the remainder dropped (Algorithm 5, lines after "Group
    reassignment"). A system that ends before agent i is reached gives one trajectory; its calls are singletons, too.

    Args:
        probabilities: p, one per agent, summing to 1; the paper's is (0.7, 0.1, 0.2). None: uniform.
        regroup: by_agent | shuffle.
    """

    def __init__(
        self,
        group_size: int,
        agents: list[str],
        probabilities: list[float] | None = None,
        regroup: str = "by_agent",
    ):
        super().__init__(group_size, agents)
        self.probabilities = [1 / len(agents)] * len(agents) if probabilities is None else list(probabilities)
        if len(self.probabilities) != len(agents):
            raise ValueError(
                f"mas.sampling.rr.probabilities has {len(self.probabilities)} values for {len(agents)} agents "
                f"({', '.join(agents)}): give one per agent"
            )
        if not (min(self.probabilities) >= 0 and abs(sum(self.probabilities) - 1) <= 1e-6):  # NaN fails, too
            raise ValueError(
                f"mas.sampling.rr.probabilities={self.probabilities} must be >= 0 and sum to 1, "
                f"but sum to {sum(self.probabilities):.6g}"
            )
        if regroup not in REGROUPS:
            raise ValueError(f"mas.sampling.rr.regroup={regroup!r} is unknown; allowed: {', '.join(REGROUPS)}")
        self.regroup = regroup

    async def sample(self, forest: Forest) -> tuple[list[Sample], Formula]:
        """Draw the fork agent, a function of the forest's seed, and fork there."""
        draw = random.Random(derive_seed(forest.seed, "round-robin"))
        fork_agent = draw.choices(self.agents, self.probabilities)[0]
        trajectories, point = await fork_on(forest, fork_agent, self.group_size)
        formula = Formula()
        formula.add_fork(position_of(trajectories[0], point), len(trajectories[0].calls), self.group_size)
        calls = unique_calls(trajectories)
        sizes = Counter(by_position(call) for call in calls)
        forked_at = fork_agent if point is not None else "none"
        samples = []
        for call in calls:
            group = by_position(call)
            if sizes[group] == 1:
                group = SHUFFLED if self.regroup == "shuffle" else (BATCH, *group, f"fork@{forked_at}")
            samples.append(Sample(call, group))
        return samples, formula
