"""A clock that can be paused: call timeouts do not run while the weights are being updated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")

# Seconds between two checks of a call that waits while the clock is paused.
CHECK_INTERVAL = 1.0


class Stopwatch:
    """Counts the seconds in which generation was possible.

    Time paused for a weight update does not count against call timeouts. All methods must be called on the same event
    loop.
    """

    def __init__(self) -> None:
        self._lost = 0.0
        self._stopped: float | None = None

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
