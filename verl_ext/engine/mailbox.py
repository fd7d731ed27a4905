"""Parcels from one sender to several readers, each of which takes all of them, in order.

A Ray actor. Its process imports this module alone, and starts at once.
"""

from __future__ import annotations

import asyncio
from typing import Any

# Parcels that may wait for the slowest reader.
AHEAD = 2


class Mailbox:
    """All methods are for one event loop."""

    def __init__(self) -> None:
        self._parcels: dict[int, Any] = {}
        self._next: list[int] = []

    async def open(self, readers: int) -> None:
        """Begin anew, for so many readers."""
        self._parcels, self._next, self._changed = {}, [0] * readers, asyncio.Condition()

    async def put(self, number: int, parcel: Any) -> None:
        """Put the parcel of this number; returns once at most AHEAD wait for the slowest reader."""
        async with self._changed:
            self._parcels[number] = parcel
            self._changed.notify_all()
            await self._changed.wait_for(lambda: number - min(self._next) < AHEAD)

    async def take(self, reader: int, number: int) -> Any:
        """Wait for the parcel of this number. The reader needs those before it no more."""
        async with self._changed:
            self._next[reader] = number
            self._parcels = {n: parcel for n, parcel in self._parcels.items() if n >= min(self._next)}
            self._changed.notify_all()
            await self._changed.wait_for(lambda: number in self._parcels)
            return self._parcels[number]
