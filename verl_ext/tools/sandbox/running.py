"""One running program, from the side of the trainer: what it prints, and how it ends."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable

from verl_ext.tools.sandbox.jail.server import Ended

# A program that prints more to a stream is ended.
OUTPUT_BYTES = 1 << 20
READ_BYTES = 1 << 16


class Stream:
    """What a program printed to one of its streams: the first and the last `keep` bytes, and how many there were."""

    def __init__(self, keep: int):
        self.keep, self.total, self.head = keep, 0, bytearray()
        self._tail: deque[bytes] = deque()
        self._held = 0

    def add(self, data: bytes) -> None:
        """The next bytes."""
        self.total += len(data)
        missing = self.keep - len(self.head)
        self.head += data[:missing]
        self._tail.append(data[missing:])
        self._held += len(self._tail[-1])
        while self._held - len(self._tail[0]) >= self.keep:
            self._held -= len(self._tail.popleft())

    @property
    def tail(self) -> bytes:
        """The last bytes of those that are not in `head`."""
        return b"".join(self._tail)[-self.keep :]


class Run:
    """One program in a server, from the side of the trainer.

    kill: has it ended.

    done: its `Ended`; `ServerLost`; NoSandbox, if its process could not be locked in.
    flooded: it was ended because it printed more than OUTPUT_BYTES.
    """

    def __init__(self, number: int, keep: int, kill: Callable[[Run], None]):
        self.number, self.loop = number, asyncio.get_running_loop()
        self.done: asyncio.Future[Ended] = self.loop.create_future()
        self.stdout, self.stderr = Stream(keep), Stream(keep)
        self.flooded, self._kill = False, kill
        self._open: dict[int, Stream] = {}

    def listen(self, descriptor: int, stream: Stream) -> None:
        """Collect what comes from `descriptor`, which is closed at the end."""
        os.set_blocking(descriptor, False)
        self._open[descriptor] = stream
        self.loop.add_reader(descriptor, self.read, descriptor)

    def read(self, descriptor: int) -> bool:
        """Take what is there; whether there may be more."""
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
        """Close what is open; with `drain`, after taking what a dead program has left in its pipes."""
        for descriptor in self._open:
            while drain and self.read(descriptor):
                pass
            if not self.loop.is_closed():
                self.loop.remove_reader(descriptor)
            os.close(descriptor)
        self._open = {}
