"""A clock that can be paused, for time limits, and a record of what coroutines wait for, for the watchdog."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from verl_ext.tools.time_limits import Clock


@dataclass(eq=False)
class Wait:
    """Something that is waited for: a noun and what belongs to it, e.g. `call of tool "search"`.

    work: the coroutine of a whole trajectory, whose place shows where the workflow itself waits.
    """

    what: str
    work: Coroutine[Any, Any, Any] | None = None
    since: float = field(default_factory=time.monotonic)


class Stopwatch(Clock):
    """Counts the seconds in which generation was possible.

    Time paused for a weight update does not count against call timeouts. Other threads may read the attributes.

    Attributes:
        waits: what is being waited for now.
        events: a count that rises whenever a wait begins or ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: dict[Wait, None] = {}
        self.events = 0

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
