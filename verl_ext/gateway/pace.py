"""Pace: tells when a program has asked all that it asks at once, from pauses between its requests.

A pause is counted in short naps of the event loop, not in seconds: while the machine stands still, neither the program
nor the count goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# Naps that make a pause.
NAPS = 4
# Pauses after which a program is not waited for any longer that has not asked what it asked before.
PATIENCE = 250


class Pace:
    """The pauses of one program.

    Args:
        seconds: of a pause, in which nothing more is asked.

    Attributes:
        quiet: True if nothing was asked for a pause.
        patient_no_more: True if nothing was asked for `PATIENCE` pauses.
    """

    def __init__(self, seconds: float):
        self._nap = seconds / NAPS
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._naps = self._settled = 0
        self._asked = self._over = False
        self._waits: Callable[[], bool] = lambda: False
        self._quiet: Callable[[], None] = lambda: None
        self._busy: Callable[[int], None] = lambda change: None
        self._counted = self._undecided = 0

    def begin(self, waits: Callable[[], bool], quiet: Callable[[], None], busy: Callable[[int], None]) -> None:
        """The program begins.

        Args:
            waits: whether the program waits for an answer.
            quiet: called when it has asked something and is quiet.
            busy: called with 1 when it begins to work, with -1 when it waits for answers, or has ended.
        """
        self._waits, self._quiet, self._busy = waits, quiet, busy
        self._count()

    @property
    def quiet(self) -> bool:
        return self._naps >= NAPS

    @property
    def patient_no_more(self) -> bool:
        return self._naps >= NAPS * PATIENCE

    def asked(self) -> None:
        """The program has asked something."""
        self._asked = True
        self.restart()

    def restart(self) -> None:
        """Count a pause from now on."""
        self._naps = 0
        self.news()

    def news(self) -> None:
        """Something has changed for those that wait, and the program may go on."""
        self._settled = 0
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        if self._handle is None and not self._over:
            self._handle = self._loop.call_later(self._nap, self._tick)
        self._count()

    async def change(self) -> None:
        """Wait for news, or for the end of a pause."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        if self._handle is None and not self._over:
            self._handle = self._loop.call_later(self._nap, self._tick)
        await waiter

    async def all_asked(self) -> None:
        """Wait until the program has asked what it asks at once. It counts as at work until this has been used."""
        self._undecided += 1
        try:
            while not self.quiet and not self._over:
                await self.change()
        finally:
            self._undecided -= 1
            self.news()

    def end(self) -> None:
        """The program has ended."""
        self._over = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self.news()

    def _tick(self) -> None:
        self._handle = None
        self._naps, self._settled = self._naps + 1, self._settled + 1
        if self._asked and self._naps == NAPS:
            self._quiet()
        if self._naps in (NAPS, NAPS * PATIENCE):
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        if self._settled < NAPS or (self._waiters and not self.patient_no_more):
            self._handle = self._loop.call_later(self._nap, self._tick)
        self._count()

    def _count(self) -> None:
        waits = self._waits() and not self._undecided and self._settled >= NAPS
        works = not self._over and not waits
        if works != bool(self._counted):
            self._counted = int(works)
            self._busy(1 if works else -1)
