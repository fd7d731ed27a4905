"""Strategy: the interface of sampling strategies, with the fork primitives and the default groups that they use."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass

from pydantic import Field

from verl_ext.mas.forest import Forest
from verl_ext.mas.session import Session
from verl_ext.mas.types import Call, CallId, Status, Stream, Trajectory
from verl_ext.settings import Settings

# Group keys that begin with this reach across the questions of a batch; all others belong to their question.
# No agent and no branch can have this name.
BATCH = "*batch"
# Rows of this group are shuffled over the batch and cut into groups of `group_size`; the remainder is dropped.
SHUFFLED = (BATCH, "shuffled")


@dataclass(frozen=True)
class Sample:
    """A call that trains, and the group that its advantage is relative to.

    `group` is unique within the question unless it begins with `BATCH`.
    """

    call: Call
    group: tuple[str, ...]


class Strategy(Settings, ABC):
    """Samples trajectories of one question and decides which calls train, and in which groups.

    Its fields are its settings. A subclass adds options of its own as further fields; `mas.sampling.<name>` sets them,
    where <name> is what `mas.sampling.strategy` selects it by.

    Attributes:
        group_size: G, samples per fork.
        agents: names of the workflow's agents that train, first to last.
    """

    group_size: int = Field(ge=1)
    agents: list[str]

    @abstractmethod
    async def sample(self, forest: Forest) -> list[Sample]:
        """Fill `forest.trajectories` and return what trains. All of it runs concurrently."""

    def expected_calls(self, length: int) -> float | None:
        """Expected agent calls for one question in a chain of `length` agents, for the plan; None: not known."""
        return None


async def run_session(forest: Forest, session: Session) -> Trajectory:
    """Run a session and add its trajectory to the forest.

    A fork of a workflow that cannot be forked (`Workflow.forkable`) is an independent trajectory in its place.
    """
    stream, trajectory = session.trajectory.stream, None
    if stream.parent is None or forest.workflow.forkable:
        trajectory = await session.run()
        if stream.parent is not None and trajectory.status is Status.DIVERGED:
            forest.workflow.diverged(trajectory.error)
            if not forest.workflow.forkable:
                forest.replaced.append(trajectory)
                trajectory = None
    if trajectory is None:
        forest.cost.without_forks += 1
        trajectory = await Session(forest, Stream("+".join(stream.path))).run()
    forest.trajectories.append(trajectory)
    return trajectory


async def run_once(forest: Forest, name: str = "0") -> Trajectory:
    """One trajectory without forks (validation, evaluation)."""
    return await run_session(forest, Session(forest, Stream(name)))


async def fork_at(forest: Forest, base: Stream, call_id: CallId, group_size: int) -> list[Trajectory]:
    """G - 1 further samples of call `call_id` of trajectory `base`, each continued to its end."""
    if forest.workflow.forks_after_end:
        await forest.end_of(base).wait()
    streams = [Stream(f"{call_id}*{g}", base, call_id) for g in range(1, group_size)]
    return list(await asyncio.gather(*[run_session(forest, Session(forest, stream)) for stream in streams]))


async def fork_on(
    forest: Forest, agent: str, group_size: int, name: str = "0"
) -> tuple[list[Trajectory], CallId | None]:
    """Algorithm 2: one-to-one up to the first turn of `agent`, then G samples of it.

    The base trajectory's own output counts among the G. If the base never reaches the agent there is no fork.

    Concurrent branches may each have a first turn of the agent. The fork is then at the smallest identity (scope,
    agent, turn) of them, whichever comes first in time. Nothing is smaller than a call outside all branches and
    sub-workflows, so there the forks start as soon as the base has issued it; otherwise when the base has ended. A base
    that fails in one of several branches ends when the others have ended (`Context`), so this holds for it, too. Where
    the identity of calls is their content (`CallId`), the fork is at the agent's first call when the base has ended.

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
            point.set_result(min(candidates, key=base.place_of, default=None))
        elif call_id.agent == agent and (call_id.turn == 0 or call_id.content):
            candidates.append(call_id)
            if not call_id.scope and not call_id.content:
                point.set_result(call_id)

    async def fork() -> list[Trajectory]:
        found = await point
        return [] if found is None else await fork_at(forest, base.trajectory.stream, found, group_size)

    base.listeners.append(watch)
    trajectory, forks = await asyncio.gather(run_session(forest, base), fork())
    return [trajectory, *forks], point.result()


async def fork_all(forest: Forest, group_size: int, name: str = "0") -> list[Trajectory]:
    """G trajectories (base first) that share only the tool calls before the first call, and the workflow's randomness.

    Every entry call thus has G samples of one prompt, also where several start at once. The others start as soon as
    the base has issued its first call; if it makes none there is one trajectory.
    """
    base = Session(forest, Stream(name))
    begun: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def watch(call_id: CallId | None) -> None:
        if not begun.done():
            begun.set_result(call_id is not None)

    async def siblings() -> list[Trajectory]:
        streams = [Stream(f"*{g}", base.trajectory.stream) for g in range(1, group_size if await begun else 1)]
        return list(await asyncio.gather(*[run_session(forest, Session(forest, stream)) for stream in streams]))

    base.listeners.append(watch)
    trajectory, others = await asyncio.gather(run_session(forest, base), siblings())
    return [trajectory, *others]


def unique_calls(trajectories: list[Trajectory]) -> list[Call]:
    """The calls of the trajectories with a reward that can train, each once, in a fixed order."""
    calls = dict.fromkeys(call for trajectory in trajectories if trajectory.scored for call in trajectory.calls)
    return [call for call in calls if call.trained and call.status.trainable]


def calls_at(point: CallId | None, trajectories: list[Trajectory]) -> list[Call]:
    """The calls that can train in the place of the base's call `point`, its own among them. The base is first."""
    place = next((by_position(call) for call in trajectories[0].calls if call.id == point), None)
    return [call for call in unique_calls(trajectories) if by_position(call) == place]


def one_group(samples: list[Sample]) -> list[Sample]:
    """All samples of a question in one group, whatever their agents (ablation of Eq. 5's groups)."""
    return [Sample(sample.call, ("all",)) for sample in samples]


def by_position(call: Call) -> tuple[str, ...]:
    """The default group: same question, same place in the workflow (scope, agent, turn)."""
    return (*call.id.scope, call.agent, str(call.turn))


def chain_calls(position: int, length: int, group_size: int) -> int:
    """Calls of a base trajectory of `length` calls and its G - 1 forks at `position` (from 1): (i - 1) + G (n - i + 1).

    Position 0 stands for a call that was not reached: nothing was forked.
    """
    return length if position == 0 else (position - 1) + group_size * (length - position + 1)


def formula_calls(trajectories: list[Trajectory]) -> int:
    """Agent calls if every fork were as long as its base trajectory (the formulas of docs/mhgpo.md and docs/nmc.md).

    A base trajectory of n calls costs n. A fork at position i costs the calls from there on, n - i + 1; one that shares
    no call costs n. Systems whose length depends on what was sampled deviate from it; the metric
    sampling/agent_calls_formula shows by how much.
    """
    length = {trajectory.stream: len(trajectory.calls) for trajectory in trajectories}
    position = {
        (trajectory.stream, call.id): place
        for trajectory in trajectories
        for place, call in enumerate(trajectory.calls, 1)
    }
    total = 0
    for stream in length:
        if stream.parent is None:
            total += length[stream]
        elif stream.fork is None:
            total += length[stream.parent]
        elif (stream.parent, stream.fork) in position:
            total += length[stream.parent] - position[stream.parent, stream.fork] + 1
    return total
