"""Backward propagation of the shared reward through the forest of calls (MHGPO, Eq. 4)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import mean

from verl_ext.mas.types import Call, Trajectory

# `mean` is exact and rounds once: equal rewards have their own value as mean, so a group of them has no variance.
AGGREGATES: dict[str, Callable[[Iterable[float]], float]] = {"mean": mean, "max": max, "min": min}
# Not an operator over successors: the reward of the trajectory in which a call was sampled (JoyAgents-R1).
OWN = "own"


def aggregate(name: str) -> Callable[[Iterable[float]], float]:
    """The aggregation operator Aggr of Eq. 4 by name.

    Raises:
        ValueError: unknown name.
    """
    if name != OWN and name not in AGGREGATES:
        raise ValueError(f"mas.credit.aggregate={name!r} is unknown; allowed: {', '.join((*AGGREGATES, OWN))}")
    return AGGREGATES.get(name, mean)


def assign_credit(
    trajectories: Iterable[Trajectory],
    aggregate_name: str = "mean",
    propagate: bool = True,
    rules: Sequence[Callable[[Sequence[Trajectory]], None]] = (),
) -> None:
    """Set `reward_shared` and `reward` of every call of the trajectories that have a reward.

    Eq. 4: R_shared(k, i) = Aggr over the direct successors of that output, i.e. the calls whose prompt used it. The
    end of a trajectory is a successor of its sinks and carries the trajectory's reward. A call that several
    trajectories share is one call, its successor set is the union over them. Trajectories that failed without a reward
    (`mas.failure`) contribute nothing. Then R = R_shared + R_spe (the text after Eq. 4).

    Where a trajectory has a reward of the call's agent (`Trajectory.agent_rewards`), R has it as a further term; for a
    call that several such trajectories share, their mean.

    A call from which nothing leads to an end (its branch failed or was cancelled, and the workflow went on without it)
    receives nothing: both rewards stay NaN and it does not train (`Call.credited`). 0 would be an invented reward.

    Args:
        trajectories: of one question.
        aggregate_name: mean (the paper's), max or min; `own`: no propagation from forks, R_shared is the reward of the
            trajectory in which the call was sampled first, that of its stream (JoyAgents-R1's r_j).
        propagate: False rewards only the calls at a trajectory's end (the ablation); all others get R_shared = 0.
        rules: credit rules of algorithms, which change the rewards of these trajectories' calls afterwards.
    """
    operator = aggregate(aggregate_name)
    scored = [trajectory for trajectory in trajectories if trajectory.scored]
    ends: dict[Call, list[float]] = defaultdict(list)
    successors: dict[Call, set[Call]] = defaultdict(set)
    calls: set[Call] = set()
    given = _rewards_of_agents(scored)
    for trajectory in scored:
        calls.update(trajectory.calls)
        for sink in trajectory.sinks:
            ends[sink].append(trajectory.reward)
        for call in trajectory.calls:
            for parent in call.parents:
                successors[parent].add(call)
    for call in sorted(calls, key=lambda c: (-c.depth, c.id, c.stream.path)):
        below = [c.reward_shared for c in sorted(successors[call], key=lambda c: (c.id, c.stream.path))]
        received = ends[call] + ([reward for reward in below if not math.isnan(reward)] if propagate else [])
        nothing = math.nan if propagate else 0.0
        call.reward_shared = operator(received) if received else nothing
        call.reward = call.reward_shared + call.reward_specific + given.get(call, 0.0)
    if aggregate_name == OWN and propagate:
        for call, trajectory in first_trajectories(scored).items():
            call.reward_shared = trajectory.reward
            call.reward = call.reward_shared + call.reward_specific + given.get(call, 0.0)
    for rule in rules:
        rule(scored)


def _rewards_of_agents(scored: Sequence[Trajectory]) -> dict[Call, float]:
    """The mean reward that each call's agent was given in the trajectories with the call."""
    found: dict[Call, list[float]] = defaultdict(list)
    for trajectory in scored:
        for call in trajectory.calls:
            if call.agent in trajectory.agent_rewards:
                found[call].append(trajectory.agent_rewards[call.agent])
    return {call: mean(values) for call, values in found.items()}


def first_trajectories(finished: Sequence[Trajectory]) -> dict[Call, Trajectory]:
    """The trajectory in which each call that trains was sampled; the first that has it, if that one has failed."""
    first: dict[Call, Trajectory] = {}
    for trajectory in sorted(finished, key=lambda trajectory: trajectory.stream.depth):
        for call in trajectory.calls:
            if call.trained and call.credited:
                first.setdefault(call, trajectory)
    return first
