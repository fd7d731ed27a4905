"""Says what a run waits for when nothing happens, and ends a run in which nothing happens for long.

Each rollout worker has a `Watch`, which is read from another thread than that of its event loop: `Look`. The trainer
reads all of them every few seconds and gives them to its `Watchdog`, whose lines the terminal shows (`WAITS`).
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from verl_ext.mas.stopwatch import Stopwatch
from verl_ext.observe.progress import WAITS
from verl_ext.storage import jsonl
from verl_ext.tracebacks import users_frames
from verl_ext.trainer.rollout.phases import Phases

T = TypeVar("T")
# Seconds without an answer after which an event loop counts as blocked.
BLOCKED = 2.0


@dataclass
class Look:
    """The state of a rollout worker.

    silent: seconds without progress; 0 while nothing is being sampled, or the engine pauses
    waits: what is waited for, how many of it, and since how many seconds the oldest
    blocked: the stack of the code that blocks the event loop, or nothing
    broken: why training must stop, or nothing
    empty: questions since the last one that gave rows; reasons: why, in words
    """

    silent: float = 0.0
    waits: list[tuple[str, int, float]] = field(default_factory=list)
    blocked: str = ""
    broken: str = ""
    empty: int = 0
    reasons: str = ""


class Watch:
    """Observes the event loop of a rollout worker.

    Args:
        clock: counts waits; it stands still while the engine pauses.
        loop, thread: the event loop and the thread in which it runs.
    """

    def __init__(self, clock: Stopwatch, loop: asyncio.AbstractEventLoop, thread: threading.Thread):
        self.clock, self._loop, self._thread = clock, loop, thread
        self._events, self._since = -1, 0.0
        self._asked, self._answered = 0.0, True

    def look(self) -> Look:
        """What the loop waits for. Called from any thread but the loop's, every few seconds."""
        now = time.monotonic()
        waits = list(self.clock.waits)
        if self.clock.events != self._events or self.clock.paused or not waits:
            self._events, self._since = self.clock.events, now
        blocked = "" if self._answered or now - self._asked < BLOCKED else self._stack()
        if self._answered:
            self._asked, self._answered = now, False
            self._loop.call_soon_threadsafe(setattr, self, "_answered", True)
        grouped: dict[str, list[float]] = {}
        precise = any(wait.work is None for wait in waits)
        for wait in waits:
            if wait.work is None or not precise:
                what = wait.what if wait.work is None else f"{wait.what} at {place(wait.work)}"
                grouped.setdefault(what, []).append(now - wait.since)
        found = [(what, len(ages), max(ages)) for what, ages in grouped.items()]
        return Look(now - self._since, found, blocked)

    def run(self, work: Coroutine[Any, Any, T], broken: Callable[[], str]) -> T:
        """Run a coroutine on the loop, which user's code may have blocked, and return its result.

        Raises:
            RuntimeError: `broken` names a reason to stop.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while not futures.wait([future], timeout=1.0).done:
            if reason := broken():
                raise RuntimeError(reason)
        return future.result()

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        stack = traceback.extract_stack(frame)
        return "".join((users_frames(stack) or stack).format())


def place(work: Coroutine[Any, Any, Any]) -> str:
    """Where a suspended coroutine waits: file and line of the innermost user's code."""
    frames, inner = [], cast(Any, work)
    while frame := getattr(inner, "cr_frame", None):
        frames.append((frame, frame.f_lineno))
        inner = getattr(inner, "cr_await", None)
    users = users_frames(traceback.StackSummary.extract(iter(frames)))
    return f"{users[-1].filename}:{users[-1].lineno}" if users else "an unknown line"


class Watchdog:
    """Decides when to say something, and when to end the run.

    Args:
        folder: of the run.
        warn_after, stop_after: seconds of silence, `mas.limits`; None: never.
        servers: the state of the rollout servers in words.

    Attributes:
        phases: of the trainer's process; None until its training begins.
        lost: (seconds in which it shows) -> which process that the run needs has died, in words, or nothing.
    """

    def __init__(
        self,
        folder: str | Path,
        warn_after: float | None,
        stop_after: float | None,
        servers: Callable[[], str] = lambda: "",
    ):
        self.path, self.servers = Path(folder) / WAITS, servers
        self.warn_after, self.stop_after = warn_after, stop_after
        self._next = warn_after
        self.phases: Phases | None = None
        self.lost: Callable[[float], str] = lambda seconds: ""

    def check(self, looks: Sequence[Look]) -> str | None:
        """Write down what the run waits for, where that is due; returns why the run must end, if it must."""
        if lost := self.lost(BLOCKED):
            self.write(f"{lost.splitlines()[0].rstrip('.')}. The run ends")
            if self.phases is not None:
                self.phases.must_end = True
            return lost
        silent = silence(looks)
        if self.stop_after is not None and silent >= self.stop_after:
            return f"the run was ended (mas.limits.stop_after={self.stop_after:g}): {self._words(silent, looks)}"
        if self.warn_after is None or self._next is None or silent < self.warn_after:
            self._next = self.warn_after
        elif silent >= self._next:
            self._next = 2 * silent
            self.write(self._words(silent, looks))
        late, over = self.phases.late(any(look.waits for look in looks)) if self.phases is not None else ("", "")
        if late:
            self.write(late)
        return over or None

    def write(self, text: str) -> None:
        """Show a line in the terminal."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        jsonl.append(self.path, [{"time": time.time(), "text": text}])

    def _words(self, silent: float, looks: Sequence[Look]) -> str:
        merged: dict[str, tuple[int, float]] = {}
        for what, count, oldest in (wait for look in looks for wait in look.waits):
            before = merged.get(what, (0, 0.0))
            merged[what] = before[0] + count, max(before[1], oldest)
        parts = [_counted(what, *found) for what, found in sorted(merged.items())]
        text = f"nothing has happened for {silent:.0f} s: {', '.join(parts) or 'no wait is known'}"
        if any("waiting for the model" in what for what in merged):
            text = "; ".join(filter(None, [text, self.servers()]))
        for rank, look in enumerate(looks):
            if look.blocked:
                text += f"\nThe event loop of rollout worker {rank} is blocked by this code:\n{look.blocked}"
        return text.rstrip()


def silence(looks: Sequence[Look]) -> float:
    """Seconds in which no worker that samples has made progress, or in which one's event loop was blocked."""
    sampling = min((look.silent for look in looks if look.waits), default=0.0)
    return max([sampling, *(look.silent for look in looks if look.blocked)])


def _counted(what: str, count: int, oldest: float) -> str:
    noun, _, rest = what.partition(" ")
    age = f"oldest {oldest:.0f} s" if count > 1 else f"{oldest:.0f} s"
    return f"{count} {noun}{'s' if count > 1 else ''} {rest} ({age})"
