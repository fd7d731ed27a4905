"""One run of a workflow: call identities, the call graph, forking, and divergence detection."""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from verl_ext.mas.context import Context
from verl_ext.mas.differences import first_difference, number_places, same
from verl_ext.mas.forest import CLOSE_TIMEOUT, BrokenReward, Forest
from verl_ext.mas.options import as_number
from verl_ext.mas.types import (
    Call,
    CallFailed,
    CallId,
    Invocation,
    Status,
    Stream,
    Task,
    ToolFailed,
    Trajectory,
)
from verl_ext.mas.works import Works
from verl_ext.rewards.judge import JudgeFailed, Spent, spending
from verl_ext.tracebacks import place_of, users_traceback

# The state of a coroutine that nobody has awaited.
NEW = inspect.CORO_CREATED


class Session:
    """Runs the forest's workflow once, in `stream`. With a fork in the stream, everything before it is replayed."""

    def __init__(self, forest: Forest, stream: Stream):
        self.forest = forest
        self.trajectory = Trajectory(stream)
        self._lineage = stream.lineage()
        self._forks = {s.fork: s for s in self._lineage if s.fork is not None}
        # Agent calls belong to this stream or a deeper one: the root, or the last sibling.
        self._floor = [s for s in self._lineage if s.fork is None][-1]
        self._fork_reached = stream.parent is None
        self._calls: list[Call] = []
        self._issued = self._refused = 0
        # An error that decides the trajectory's status even if the workflow catches it.
        self._fatal: Exception | None = None
        self._over = False
        self.works = Works(forest.clock)
        self._context = Context(self, forest.workflow)
        # What the workflow has made of `ctx.call` and the like, with its name and its place in the user's code.
        self.made: list[tuple[Coroutine[Any, Any, Any], str, str]] = []
        # Called with the identity of every call of a trained agent as it is issued, with None at the end of the run.
        self.listeners: list[Callable[[CallId | None], None]] = []

    async def run(self) -> Trajectory:
        """Run the workflow to its end. Failures become the trajectory's status; only a broken reward raises.

        Branches that the workflow left running are cut off at their next call.
        """
        coroutine = self._work()
        work = asyncio.ensure_future(coroutine)
        limit, clock = self.forest.limits.trajectory_timeout, self.forest.clock
        self.forest.begun += 1
        start = clock.now()
        try:
            with clock.waiting("run of the workflow", coroutine):
                await clock.wait_for(work, limit)  # a task of its own: a cancellation here came from outside
        except asyncio.TimeoutError:
            late = f"no result within mas.limits.trajectory_timeout={limit:g} s, after {len(self._calls)} calls"
            self._fatal = self._fatal or CallFailed(Status.TIMEOUT, late)
            await self._give_up(work)
        except asyncio.CancelledError:
            await self._give_up(work)
            raise
        finally:
            self.forest.seconds += clock.now() - start
        if self.forest.closed:
            raise asyncio.CancelledError
        trajectory = self.trajectory
        if isinstance(self._fatal, BrokenReward):
            raise self._fatal
        if isinstance(self._fatal, CallFailed):
            self._fail(self._fatal.status, self._fatal, self._fatal.trace)
        elif self._fatal is not None:  # a bug in the workflow: counted and logged, it does not stop the training
            bug = self._fatal
            trajectory.status, trajectory.error = Status.WORKFLOW_ERROR, f"{type(bug).__name__}: {bug}"
            trajectory.trace = users_traceback(bug)
        else:
            await self._score(trajectory, self.forest.task)
        return trajectory

    def _fail(self, status: Status, error: Exception, trace: str = "") -> None:
        """The end of a trajectory that could not finish, with the reward of `mas.failure`, if there is one."""
        trajectory = self.trajectory
        trajectory.status, trajectory.error, trajectory.trace = status, str(error), trace
        reward = self.forest.failure_rewards.get(status.value)
        if reward is not None and not self.forest.greedy:  # the last calls it made lead to this end
            trajectory.reward, trajectory.sinks = reward, tuple(self._context.frontier)

    async def _give_up(self, work: asyncio.Task[None]) -> None:
        """Wait for a cancelled workflow to clean up; one that ignores its cancellation runs on, without calls."""
        self._over = True
        await asyncio.wait([work], timeout=CLOSE_TIMEOUT)
        self._end()

    async def _work(self) -> None:
        trajectory, context = self.trajectory, self._context
        try:
            trajectory.result = await self.forest.workflow.run(self.forest.task, context)
            trajectory.sinks = tuple(context.frontier)
            self._check_awaited(trajectory.result)
            if not self._fork_reached and self._fatal is None:
                point = trajectory.stream.fork or "(the first call)"
                self._fatal = CallFailed(Status.DIVERGED, f"the fork point {point} was not reached again on replay")
        except asyncio.CancelledError:
            self._fatal = self._fatal or RuntimeError(
                "the workflow let a CancelledError escape, of a task it cancelled"
            )
        except Exception as error:
            self._fatal = self._fatal or _root_cause(error)
        finally:
            self._end()

    def _end(self) -> None:
        self._over = True
        self.trajectory.calls = sorted(self._calls, key=lambda call: (call.depth, call.id))
        number_places(self.trajectory.calls)
        self.forest.end_of(self.trajectory.stream).set()
        self._announce(None)

    def _check_awaited(self, result: Any) -> None:
        """Refuse the result of a workflow that has left out an `await`: what it did not wait for was never done.

        Raises:
            TypeError: names the place.
        """
        left = [f"{what}, made at {place}" for one, what, place in self.made if inspect.getcoroutinestate(one) == NEW]
        if inspect.isawaitable(result) and not left:
            left = [f"its result, {result!r}"]
        if left:
            run = place_of(self.forest.workflow.run)
            raise TypeError(f"{run} has ended and never awaited {', '.join(left)}. Remedy: `await` before it")

    def _admit(self) -> None:
        """Stop a workflow whose trajectory has ended, even if it catches every `Exception`."""
        if self._over or self._fatal is not None:
            raise asyncio.CancelledError

    def _check_limit(self) -> None:
        limit = self.forest.limits.max_calls
        if self._issued < limit:
            return
        failure = CallFailed(Status.CALL_LIMIT, f"the trajectory reached mas.limits.max_calls={limit}")
        self._refused += 1
        if self._refused > limit:
            self._fatal = failure
        raise failure

    async def _score(self, trajectory: Trajectory, task: Task) -> None:
        spent = Spent()
        try:
            scored = self.forest.workflow.reward(task, trajectory.result)
            if inspect.isawaitable(scored):
                with self.forest.clock.waiting("reward being computed"), spending() as spent:
                    scored = await scored
            if not isinstance(scored, tuple) or len(scored) != 2:
                raise TypeError(f"it returned {scored!r:.200}, not (reward, {{quantity: value}})")
            reward, metrics = scored
            trajectory.reward = as_number(reward, "the reward")
            trajectory.metrics = {k: as_number(v, f"the quantity {k!r}") for k, v in metrics.items()}
            trajectory.metrics |= spent.metrics() if spent.calls else {}
            if not math.isfinite(trajectory.reward):
                raise ValueError(f"the reward {trajectory.reward} is not finite")
        except JudgeFailed as error:
            self._fail(Status.JUDGE_ERROR, error)
        except Exception as error:
            raise BrokenReward(
                f"{place_of(self.forest.workflow.reward)} raised {error!r} on row {task.index} of {task.data_source!r}"
                f", result {trajectory.result!r:.500}"
            ) from error

    def call_of(self, call_id: CallId) -> Call | None:
        """The call of this identity, if it was answered, or has failed."""
        return next((call for call in self._calls if call.id == call_id), None)

    def place_of(self, call_id: CallId) -> tuple[float, CallId]:
        """By which a call of the run, which has ended, comes before others of its agent."""
        if not call_id.content:
            return (0, call_id)
        found = (call.turn for call in self.trajectory.calls if call.id == call_id)
        return (next(found, math.inf), call_id)

    def _announce(self, call_id: CallId | None) -> None:
        for listener in self.listeners:
            listener(call_id)

    def _stream_of(self, call_id: CallId, floor: Stream, depends_on: list[Stream]) -> Stream:
        """The deepest stream of the lineage that this call depends on, at least `floor`."""
        forked_here = [self._forks[call_id]] if call_id in self._forks else []
        return max([floor, *depends_on, *forked_here], key=lambda stream: stream.depth)

    def _settle(self, call_id: CallId, stream: Stream, now: Any) -> Stream:
        """The stream to use: `stream`, or a later one of the lineage if a concurrent branch saw its fork's effect.

        Raises:
            CallFailed: the record differs and nothing but the workflow itself can be the reason.
        """
        options = self._lineage[stream.depth - 1 :]
        records = [self.forest.recorded(call_id, option) for option in options]
        if records[0] is None:
            return stream
        for option, record in zip(options, records, strict=True):
            if record is not None and same(record, now):
                return option
        if len(options) == 1 or not self._fork_reached or records[-1] is not None:
            raise self._diverged(call_id, records[0], now)
        return options[-1]

    @property
    def ending(self) -> Exception | None:
        """The error with which the trajectory will end, if it must."""
        return self._fatal

    def diverge(self, found: str) -> Exception:
        """End the trajectory, as the workflow has asked something else on replay; returns the error to raise."""
        self._fatal = self._fatal or CallFailed(Status.DIVERGED, found)
        return self._fatal

    def _diverged(self, call_id: CallId, recorded: Any, now: Any) -> Exception:
        return self.diverge(f"call {call_id} on replay: {first_difference(recorded, now)}")

    async def call(self, invocation: Invocation) -> Call:
        """Make or replay one call; called by `Context.call` and `Context.resume`."""
        self._admit()
        self._check_limit()
        call_id, asked = invocation.id, invocation.asked()
        after = [call.stream for call in (*invocation.parents, *invocation.before)]
        if call_id == self.trajectory.stream.fork:
            self._reach_fork(call_id, after, asked)
        elif not self._fork_reached and self.trajectory.stream.fork is None:
            self._enter_sibling(call_id, asked)
        stream = self._settle(call_id, self._stream_of(call_id, self._floor, after), asked)
        self._issued += 1
        if invocation.agent.trained:
            self._announce(call_id)
        try:
            with self._waiting(call_id, stream):
                call = await self.forest.call(invocation, stream, asked)
        except BrokenReward as error:
            self._fatal = error
            raise
        self._calls.append(call)
        return call

    @contextmanager
    def _waiting(self, call_id: CallId, stream: Stream) -> Iterator[None]:
        """The block waits for this call or tool call."""
        try:
            with self.works.under_way():
                yield
        except asyncio.CancelledError:
            if not self._over:  # the workflow has cancelled it, by `asyncio.wait_for` for example
                self.forest.forget(call_id, stream)
            raise

    def _reach_fork(self, call_id: CallId, after: list[Stream], messages: Any) -> None:
        """Check the prompt of the call to be forked against the trajectory that it is forked from."""
        self._fork_reached = True
        forked_here = [stream for stream in self._lineage[:-1] if stream.fork == call_id]
        before = max([self._floor, *forked_here, *after], key=lambda stream: stream.depth)
        records = [self.forest.recorded(call_id, stream) for stream in self._lineage[before.depth - 1 : -1]]
        made = [record for record in records if record is not None]
        if not made:
            never = f"call {call_id} is to be forked, but the trajectory it forks from never made it"
            raise self.diverge(never)
        if messages not in made:
            raise self._diverged(call_id, made[0], messages)

    def _enter_sibling(self, call_id: CallId, messages: Any) -> None:
        """Check the prompt of a sibling's first call, before which nothing was sampled, against its parent's."""
        self._fork_reached = True
        record = self.forest.recorded(call_id, self._lineage[-2])
        if record is not None and record != messages:
            raise self._diverged(call_id, record, messages)

    async def tool(self, call_id: CallId, name: str, arguments: dict[str, Any], depends_on: list[Call]) -> Any:
        """Make or replay one tool call; called by `Context.tool`."""
        self._admit()
        stream = self._stream_of(call_id, self._lineage[0], [call.stream for call in depends_on])
        stream = self._settle(call_id, stream, arguments)
        with self._waiting(call_id, stream):
            record = await self.forest.tool(call_id, stream, name, arguments, tuple(depends_on))
        self.trajectory.tools.append(record)
        if record.failure is not None:
            self.trajectory.tool_failures += 1
            raise ToolFailed(Status.TOOL_ERROR, record.failure, record.trace)
        return copy.deepcopy(record.result)


def _root_cause(error: Exception) -> Exception:
    """The first error inside an exception group (a workflow may use `asyncio.TaskGroup`), else the error itself."""
    while isinstance(inner := getattr(error, "exceptions", None), tuple):
        error = inner[0]
    return error
