"""A clock that can be paused, for time limits, and a record of what coroutines wait for, for the watchdog."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

# Seconds between two checks of a call that waits while the clock is paused.
CHECK_INTERVAL = 1.0


@dataclass(eq=False)
class Wait:
    """Something that is waited for: a noun and what belongs to it, e.g. `call of tool "search"`.

    work: the coroutine of a whole trajectory, whose place shows where the workflow itself waits.
    """

    what: str
    work: Coroutine[Any, Any, Any] | None = None
    since: float = field(default_factory=time.monotonic)


class Stopwatch:
    """Counts the seconds in which generation was possible.

    Time paused for a weight update does not count against call timeouts. All methods must be called on the same event
    loop. Other threads may read the attributes.

    Attributes:
        waits: what is being waited for now.
        events: a count that rises whenever a wait begins or ends.
    """

    def __init__(self) -> None:
        self._lost = 0.0
        self._stopped: float | None = None
        self.waits: dict[Wait, None] = {}
        self.events = 0

    @property
    def paused(self) -> bool:
        """Whether the clock stands still."""
        return self._stopped is not None

    @contextmanager
    def waiting(self, what: str, work: Coroutine[Any, Any, Any] | None = None) -> Iterator[None]:
        """Record a wait while the block runs."""
        wait = Wait(what, work)
        self.waits[wait] = None
        self.events += 1
        try:
            yield
        finally:
            del self.waits[wait]
            self.events += 1

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
            asyncio.TimeoutError: not done within `seconds`; the work is cancelled.
        """
        task = asyncio.ensure_future(work)
        end = None if seconds is None else self.now() + seconds
        try:
            while not task.done():
                left = None if end is None else end - self.now()
                if left is not None and self._stopped is not None:
                    left = max(left, CHECK_INTERVAL)
                if left is not None and left <= 0:
                    raise asyncio.TimeoutError
                await asyncio.wait([task], timeout=left)
            return task.result()
        finally:
            task.cancel()
