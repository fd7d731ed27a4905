"""Knows which phase of its step the trainer's process is in, says where one hangs, and ends it.

The rollout workers do not see this: for example, a training process hangs in a collective operation.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# A phase is late after so many times its longest duration so far.
TIMES = 5.0
# One that has never ended before, after so many times `warn_after`: the first update of a large model takes minutes.
FIRST = 10.0


class Phases:
    """The phases of a training step, as verl times them (`marked_timer`).

    Args:
        warn_after: seconds below which no phase is late; None: none ever is.
        stop_after: seconds below which no phase is ended; None: none ever is.
        states: () -> what the training processes do, in words, if something is known of them.

    Attributes:
        must_end: a phase has lasted too long, or a process that it may wait for has died; `interrupt` ends it.
    """

    def __init__(self, warn_after: float | None, stop_after: float | None, states: Callable[[], str] = lambda: ""):
        self._warn_after, self._stop_after, self._states = warn_after, stop_after, states
        self._running: list[str] = []  # the innermost last
        self._since, self._reported = time.monotonic(), False
        self._longest: dict[str, float] = {}
        self._thread = threading.current_thread()
        self.must_end = False

    @contextmanager
    def watched(self, modules: list[Any]) -> Iterator[None]:
        """Observe `marked_timer` of verl's modules. Called in the main thread, which `interrupt` interrupts."""
        stock, before = modules[0].marked_timer, signal.signal(signal.SIGUSR1, _interrupt)

        @contextmanager
        def marked_timer(name: str, *args: Any, **kwargs: Any) -> Iterator[None]:
            with self.phase(name), stock(name, *args, **kwargs):
                yield

        for module in modules:
            module.marked_timer = marked_timer
        try:
            yield
        finally:
            # By default the signal ends a process: an `interrupt` that comes too late would end this one in silence.
            signal.signal(signal.SIGUSR1, signal.SIG_IGN if before is signal.SIG_DFL else before)
            for module in modules:
                module.marked_timer = stock

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The trainer is in this phase."""
        start = time.monotonic()
        self._running.append(name)
        self._since, self._reported = start, False
        try:
            yield
        finally:
            now = time.monotonic()
            self._running.pop()
            self._longest[name] = max(self._longest.get(name, 0.0), now - start)
            self._since, self._reported = now, False

    def late(self, sampling: bool) -> tuple[str, str]:
        """(what is late, in words, once in a phase; why the run must end), empty if nothing is.

        Called every few seconds, from another thread than the trainer's.

        Args:
            sampling: the rollout workers wait for something. `Watchdog` says then what for.
        """
        now = time.monotonic()
        if sampling:
            self._since = now
        name, waited = (self._running or ["two steps"])[-1], now - self._since
        longest = self._longest.get(name, 0.0)
        over = self._stop_after is not None and waited >= max(self._stop_after, TIMES * longest)
        late = waited >= self._patience(longest)
        if not over and (not late or self._reported):
            return "", ""
        self._reported = True
        before = f"which took at most {longest:.1f} s before" if longest else "which has not ended before in this run"
        place = f"in {name}, {before}," if self._running else f"between {name}"
        words = f"the trainer has been {place} for {waited:.0f} s{self._states()}"
        if not over:
            return words, ""
        self.must_end = True
        return "", f"the run was ended (mas.limits.stop_after={self._stop_after:g}): {words}"

    def _patience(self, longest: float) -> float:
        """Seconds after which a phase is late that took at most `longest` before, 0 if it has never ended."""
        if self._warn_after is None:
            return math.inf
        if longest:
            return max(self._warn_after, TIMES * longest)
        return min(FIRST * self._warn_after, math.inf if self._stop_after is None else self._stop_after / 2)

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the trainer's thread, also where it waits for Ray."""
        signal.pthread_kill(self._thread.ident or 0, signal.SIGUSR1)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # Ray passes on no other exception from within ray.get
