"""Works: what a workflow has begun, and within what. A failure is raised once what runs beside it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from verl_ext.tools.time_limits import Clock, LimitReached

T = TypeVar("T")

# Seconds without any call or tool under way, after which a failure no longer waits for what runs beside it.
PATIENCE = 5.0


@dataclass(eq=False)
class Work:
    """A call, a tool, a branch or a sub-workflow; or the whole run, which is within nothing.

    Attributes:
        number: in the order in which they were made.
        chain: the works that it is within, outermost first, and itself.
        parts: the works begun directly within it that run.
        failed: whether it has failed, and waits for the others.
    """

    number: int = -1
    chain: tuple[Work, ...] = ()
    parts: list[Work] = field(default_factory=list)
    failed: bool = False

    def __post_init__(self) -> None:
        self.chain = self.chain or (self,)


# The chain of the work to which the code that runs now belongs.
_inside: ContextVar[tuple[Work, ...]] = ContextVar("inside", default=())


class Works:
    """The works of one run of a workflow.

    Args:
        clock: counts `PATIENCE`.
    """

    def __init__(self, clock: Clock):
        self._clock = clock
        self._waiting: dict[Work, asyncio.Future[None]] = {}
        # Calls and tools under way, and how often one has begun or ended, or a work has.
        self._under_way = self._events = 0

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """A call or a tool runs in this block."""
        self._under_way += 1
        self._events += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._events += 1

    async def settled(self, task: Awaitable[T], work: Work, home: Work) -> T:
        """`task`, which is `work`; if it fails, the error is raised once everything begun beside it has ended.

        `asyncio.gather` passes on the first error in time: which calls of the siblings were made by then, and so train,
        or are forked, would depend on timing. If several fail, the one that was made first is raised first.

        What stands beside it is what was begun within the same work, whichever `ctx` made it: a branch that uses the
        `ctx` outside of it does not wait for itself. Works may still wait for each other, for example for a task that
        several of them await; `PATIENCE` bounds that.

        Args:
            task: its coroutine.
            work: its place among the works.
            home: the work whose `ctx` made it. It counts where the code that runs belongs to another run, or to none,
                as in a server or a thread.
        """
        outside = _inside.get()
        chain = outside if home in outside else home.chain
        work.chain = (*chain, work)
        beside = chain[-1].parts
        beside.append(work)
        _inside.set(work.chain)
        try:
            return await task
        except Exception:
            await asyncio.sleep(0)  # what was made beside it has begun then
            work.failed = True
            self._wake()
            while any(not other.failed or other.number < work.number for other in beside if other is not work):
                if await self._in_vain(work):
                    break
            raise
        finally:
            _inside.set(outside)
            beside.remove(work)
            self._wake()

    async def _in_vain(self, work: Work) -> bool:
        """Wait for news. True: there is none, and of the failures that wait, this is the innermost, or made first."""
        before = self._events
        self._waiting[work] = asyncio.get_running_loop().create_future()
        try:
            await self._clock.wait_for(self._waiting[work], PATIENCE)
            return False
        except LimitReached:
            first = min(self._waiting, key=lambda other: (-len(other.chain), other.number))
            return work is first and not self._under_way and self._events == before
        finally:
            del self._waiting[work]

    def _wake(self) -> None:
        self._events += 1
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_result(None)
