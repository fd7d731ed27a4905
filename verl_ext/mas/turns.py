"""Turns: what begins, or is answered, at once, spread over turns of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque

# Questions that begin, prompts that are made, or answers that are read, in one turn: up to a millisecond each.
AT_ONCE = 4


class Turns:
    """Lets at most `AT_ONCE` pass in a turn of the event loop, in the order in which they come.

    All that is ready runs in one turn, so the prompts of a thousand calls would hold up everything else for a second:
    time limits, the answers of tools, the gateway's requests. So would their answers, more of which come the longer a
    turn takes. For one event loop.
    """

    def __init__(self) -> None:
        self._left = AT_ONCE
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._counting = False

    @property
    def waiting(self) -> int:
        """How many wait for a turn."""
        return len(self._waiting)

    async def take(self) -> None:
        """Wait for a turn in which there is room; returns at once if there is room in this one."""
        loop = asyncio.get_running_loop()
        if not self._counting:
            self._counting = True
            loop.call_soon(self._next, loop)
        if self._left and not self._waiting:
            self._left -= 1
            return
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiter)
        await waiter

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        used, self._left = self._left < AT_ONCE, AT_ONCE
        while self._waiting and self._left:
            waiter = self._waiting.popleft()
            if not waiter.done():  # it may have been cancelled
                waiter.set_result(None)
                self._left -= 1
        self._counting = used or self._left < AT_ONCE
        if self._counting:
            loop.call_soon(self._next, loop)
