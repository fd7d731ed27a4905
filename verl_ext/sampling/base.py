"""What all strategies share: the two fork primitives and the default groups."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass

from verl_ext.mas.forest import Forest
from verl_ext.mas.session import Session
from verl_ext.mas.types import Call, CallId, Stream, Trajectory

# Group keys that begin with this reach across the questions of a batch; all others belong to their question.
# No agent and no branch can have this name.
BATCH = "*batch"


@dataclass(frozen=True)
class Sample:
    """A call that trains, and the group that its advantage is relative to.

    `group` is unique within the question unless it begins with `BATCH`.
    """

    call: Call
    group: tuple[str, ...]


@dataclass
class Formula:
    """What the strategy's formula says the sampling of one question costs, given the base trajectory's length.

    For a chain of n calls and a fork at position i (from 1): (i - 1) + G (n - i + 1) calls (mhgpo.md). Systems whose
    length depends on what was sampled may deviate; then the metric shows by how much.
    """

    calls: int = 0

    def add_fork(self, position: int, length: int, group_size: int) -> None:
        """A base trajectory and its G - 1 forks at `position` (from 1; 0: not reached, nothing was forked)."""
        self.calls += length if position == 0 else (position - 1) + group_size * (length - position + 1)


class Strategy(ABC):
    """Samples trajectories of one question and says which calls train together.

    Args:
        group_size: G >= 1.
        agents: names of the workflow's agents that train, first to last.
    """

    def __init__(self, group_size: int, agents: list[str]):
        if group_size < 1:
            raise ValueError(f"mas.sampling.group_size={group_size} must be at least 1")
        self.group_size = group_size
        self.agents = agents

    @abstractmethod
    async def sample(self, forest: Forest) -> tuple[list[Sample], Formula]:
        """Fill `forest.trajectories` and return what trains. All of it runs concurrently."""


async def run_session(forest: Forest, session: Session) -> Trajectory:
    """Run a session and add its trajectory to the forest."""
    trajectory = await session.run()
    forest.trajectories.append(trajectory)
    return trajectory


async def run_once(forest: Forest, name: str = "0") -> Trajectory:
    """One trajectory without forks (validation, evaluation)."""
    return await run_session(forest, Session(forest, Stream(name)))


async def fork_at(forest: Forest, base: Stream, call_id: CallId, group_size: int) -> list[Trajectory]:
    """G - 1 further samples of call `call_id` of trajectory `base`, each continued to its end."""
    streams = [Stream(f"{call_id}*{g}", base, call_id) for g in range(1, group_size)]
    return list(await asyncio.gather(*[run_session(forest, Session(forest, stream)) for stream in streams]))


async def fork_on(
    forest: Forest, agent: str, group_size: int, name: str = "0"
) -> tuple[list[Trajectory], CallId | None]:
    """Algorithm 2: one-to-one up to the first turn of `agent`, then G samples of it.

    The base trajectory's own output counts among the G. If the base never reaches the agent there is no fork.

    Concurrent branches may each have a first turn of the agent. The fork is then at the smallest identity (scope,
    agent, turn) of them, whichever comes first in time. Nothing is smaller than a call outside all branches and
    sub-workflows, so there the forks start as soon as the base has issued it; otherwise when the base has ended.

    Returns:
        The trajectories (base first) and the forked call's identity, or None.
    """
    base = Session(forest, Stream(name))
    point: asyncio.Future[CallId | None] = asyncio.get_running_loop().create_future()
    candidates: list[CallId] = []

    def watch(call_id: CallId | None) -> None:
        if point.done():
            return
        if call_id is None:
            point.set_result(min(candidates, default=None))
        elif call_id.agent == agent and call_id.turn == 0:
            candidates.append(call_id)
            if not call_id.scope:
                point.set_result(call_id)

    async def fork() -> list[Trajectory]:
        found = await point
        return [] if found is None else await fork_at(forest, base.trajectory.stream, found, group_size)

    base.listeners.append(watch)
    trajectory, forks = await asyncio.gather(run_session(forest, base), fork())
    return [trajectory, *forks], point.result()


async def fork_all(forest: Forest, group_size: int, name: str = "0") -> list[Trajectory]:
    """G trajectories (base first) that share nothing but the tools before any call, and the workflow's randomness.

    Every entry call thus has G samples of one prompt, also where several start at once. The others start as soon as
    the base has issued its first call; if it makes none there is one trajectory.
    """
    base = Session(forest, Stream(name))
    begun: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def watch(call_id: CallId | None) -> None:
        if not begun.done():
            begun.set_result(call_id is not None)

    async def twins() -> list[Trajectory]:
        streams = [Stream(f"*{g}", base.trajectory.stream) for g in range(1, group_size if await begun else 1)]
        return list(await asyncio.gather(*[run_session(forest, Session(forest, stream)) for stream in streams]))

    base.listeners.append(watch)
    trajectory, others = await asyncio.gather(run_session(forest, base), twins())
    return [trajectory, *others]


def unique_calls(trajectories: list[Trajectory]) -> list[Call]:
    """The calls of the successful trajectories that can train, each once, in a fixed order."""
    calls = dict.fromkeys(call for trajectory in trajectories if trajectory.ok for call in trajectory.calls)
    return [call for call in calls if call.trained and call.status.trainable]


def one_group(samples: list[Sample]) -> list[Sample]:
    """All samples of a question in one group, whatever their agents (ablation of Eq. 5's groups)."""
    return [Sample(sample.call, ("all",)) for sample in samples]


def by_position(call: Call) -> tuple[str, ...]:
    """The default group: same question, same place in the workflow (scope, agent, turn)."""
    return (*call.id.scope, call.agent, str(call.turn))


def position_of(trajectory: Trajectory, point: CallId | None) -> int:
    """Position of a call in its trajectory, from 1; 0 if it is not there."""
    return next((i for i, call in enumerate(trajectory.calls, 1) if call.id == point), 0)
