"""The trainer's side of a running program: reads its output, and waits for its end."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable

from verl_ext.tools.sandbox.jail.server import Ended

# A program that prints more than this to a stream is killed.
OUTPUT_BYTES = 1 << 20
READ_BYTES = 1 << 16


class Stream:
    """The output of a program on one stream: its first and last `keep` bytes, and its total length."""

    def __init__(self, keep: int):
        self.keep, self.total, self.head = keep, 0, bytearray()
        self._tail: deque[bytes] = deque()
        self._held = 0

    def add(self, data: bytes) -> None:
        """Append the next bytes."""
        self.total += len(data)
        missing = self.keep - len(self.head)
        self.head += data[:missing]
        self._tail.append(data[missing:])
        self._held += len(self._tail[-1])
        while self._held - len(self._tail[0]) >= self.keep:
            self._held -= len(self._tail.popleft())

    @property
    def tail(self) -> bytes:
        """The last `keep` bytes after `head`."""
        return b"".join(self._tail)[-self.keep :]


class Run:
    """One program of a server.

    kill: ends it.

    done: resolves to `Ended`; raises ServerLost, or NoSandbox if the process could not apply its locks.
    flooded: it was killed because it printed more than OUTPUT_BYTES.
    """

    def __init__(self, number: int, keep: int, kill: Callable[[Run], None]):
        self.number, self.loop = number, asyncio.get_running_loop()
        self.done: asyncio.Future[Ended] = self.loop.create_future()
        self.stdout, self.stderr = Stream(keep), Stream(keep)
        self.flooded, self._kill = False, kill
        self._open: dict[int, Stream] = {}

    def listen(self, descriptor: int, stream: Stream) -> None:
        """Collect the output from `descriptor`, which is closed at the end."""
        os.set_blocking(descriptor, False)
        self._open[descriptor] = stream
        self.loop.add_reader(descriptor, self.read, descriptor)

    def read(self, descriptor: int) -> bool:
        """Read the available output; returns whether there may be more."""
        stream = self._open[descriptor]
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        stream.add(data)
        if stream.total > OUTPUT_BYTES and not self.flooded:
            self.flooded = True
            self._kill(self)
        if not data or self.flooded:
            self.loop.remove_reader(descriptor)
        return bool(data) and not self.flooded

    def close(self, drain: bool) -> None:
        """Close the descriptors. drain: first read what a finished program has left in its pipes."""
        for descriptor in self._open:
            while drain and self.read(descriptor):
                pass
            if not self.loop.is_closed():
                self.loop.remove_reader(descriptor)
            os.close(descriptor)
        self._open = {}
