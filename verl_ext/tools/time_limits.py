"""Time limits of tool calls. They count from when a call is served, not from when it waits for its turn.

await within(search(query), 60.0)               a limit, as asyncio.wait_for
with not_counted(): await place.acquire()       a wait in a queue, which no limit around it counts
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

# Seconds between two checks of a call that waits while the clock is paused.
CHECK_INTERVAL = 1.0


class LimitReached(asyncio.TimeoutError):
    """A time limit has ended some work, which has not raised this itself."""


class Clock:
    """Counts seconds, and can be paused. All methods must be called on the same event loop."""

    def __init__(self) -> None:
        self._lost = 0.0
        self._stopped: float | None = None

    @property
    def paused(self) -> bool:
        """Whether the clock stands still."""
        return self._stopped is not None

    def stop(self) -> None:
        """Pause until `start`. Pausing twice has no further effect."""
        if self._stopped is None:
            self._stopped = asyncio.get_running_loop().time()

    def start(self) -> None:
        """Run again. A clock that runs is not changed."""
        if self._stopped is not None:
            self._lost += asyncio.get_running_loop().time() - self._stopped
            self._stopped = None

    def now(self) -> float:
        """Seconds since a fixed moment, without pauses."""
        moment = asyncio.get_running_loop().time() if self._stopped is None else self._stopped
        return moment - self._lost

    async def wait_for(self, work: Awaitable[T], seconds: float | None) -> T:
        """`asyncio.wait_for` by this clock.

        Raises:
            LimitReached: not done within `seconds`; the work is cancelled, and not waited for.
        """
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # or asyncio warns that nobody did
        end = None if seconds is None else self.now() + seconds
        try:
            while not task.done():
                left = None if end is None else end - self.now()
                if left is not None and self._stopped is not None:
                    left = max(left, CHECK_INTERVAL)
                if left is not None and left <= 0:
                    raise LimitReached
                await asyncio.wait([task], timeout=left)
            return task.result()
        finally:
            task.cancel()


class _Limit(Clock):
    """The clock of one time limit. queues: the waits under way that it does not count."""

    def __init__(self, seconds: float | None) -> None:
        super().__init__()
        self.queues = 0
        self.end = None if seconds is None else self.now() + seconds


_limits: ContextVar[tuple[_Limit, ...]] = ContextVar("limits", default=())


async def within(work: Awaitable[T], seconds: float | None) -> T:
    """`asyncio.wait_for`, which does not count the time that `work` spends in `not_counted`. None: no limit.

    Raises:
        LimitReached: not done within `seconds`; the work is cancelled, and not waited for.
    """
    limit = _Limit(seconds)

    async def limited() -> T:  # in a task of its own
        _limits.set((*_limits.get(), limit))
        return await work

    return await limit.wait_for(limited(), seconds)


def seconds_left() -> float | None:
    """Seconds until the first of the time limits around this call; None: there is none."""
    return min((limit.end - limit.now() for limit in _limits.get() if limit.end is not None), default=None)


@contextmanager
def not_counted() -> Iterator[None]:
    """The limits around this block do not count its time: it waits in a queue, or for work with a limit of its own."""
    limits = _limits.get()
    for limit in limits:
        limit.queues += 1
        limit.stop()
    try:
        yield
    finally:
        for limit in limits:
            limit.queues -= 1
            if not limit.queues:
                limit.start()
