"""Turns: what begins, or is answered, at once, spread over turns of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

# Questions that begin, prompts that are made, or answers that are read, in one turn: up to a millisecond each.
AT_ONCE = 4
# A prompt counts once more for so many characters: chat templates and tokenizers take 3 ms for a thousand tokens.
CHARACTERS = 4000


def size_of(messages: Iterable[Mapping[str, Any]]) -> int:
    """As how many a prompt counts in a turn."""
    return 1 + sum(len(text) for one in messages if isinstance(text := one.get("content"), str)) // CHARACTERS


class Turns:
    """Lets at most `AT_ONCE` pass in a turn of the event loop, in the order in which they come; a larger one, alone.

    All that is ready runs in one turn, so the prompts of a thousand calls would hold up everything else for a second:
    time limits, the answers of tools, the gateway's requests. So would their answers, more of which come the longer a
    turn takes. For one event loop.
    """

    def __init__(self) -> None:
        self._left = AT_ONCE
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._counting = False

    @property
    def waiting(self) -> int:
        """How many wait for a turn."""
        return len(self._waiting)

    async def take(self, size: int = 1) -> None:
        """Wait for a turn in which there is room; returns at once if there is room in this one."""
        loop = asyncio.get_running_loop()
        if not self._counting:
            self._counting = True
            loop.call_soon(self._next, loop)
        size = min(size, AT_ONCE)
        if self._left >= size and not self._waiting:
            self._left -= size
            return
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting.append((waiter, size))
        await waiter

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        used, self._left = self._left < AT_ONCE, AT_ONCE
        while self._waiting and self._left >= self._waiting[0][1]:
            waiter, size = self._waiting.popleft()
            if not waiter.done():  # it may have been cancelled
                waiter.set_result(None)
                self._left -= size
        self._counting = used or self._left < AT_ONCE
        if self._counting:
            loop.call_soon(self._next, loop)
