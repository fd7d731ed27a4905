"""Says what the trainer's own process waits for, where a phase of its step takes much longer than ever before.

The rollout workers do not see this: for example, a training process hangs in a collective operation.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# A phase is late after so many times its longest duration so far.
TIMES = 5.0
# Phases in which the rollout workers work: `Watchdog` sees what they wait for. "step" is the whole step.
ROLLOUTS, WHOLE = ("gen", "testing"), "step"


class Phases:
    """The phases of a training step, as verl measures them.

    verl says which phases have ended, not which one runs: that is one that came next in an earlier step. In the first
    step nothing is known of them.

    Args:
        timing: () -> verl's {phase: seconds} of the present step, in the order of their ends; another one every step.
        warn_after: seconds below which no phase is late; None: none ever is.
        stop_after: seconds after which a phase is late of which nothing is known; None: none of them is.
    """

    def __init__(self, timing: Callable[[], dict[str, float]], warn_after: float | None, stop_after: float | None):
        self._timing, self._warn_after, self._stop_after = timing, warn_after, stop_after
        self._step: dict[str, float] = {}
        self._seen: dict[str, float] = {}
        self._since = time.monotonic()
        self._reported = True  # before the first step
        self._next: dict[str, set[str]] = {}
        self._longest: dict[str, float] = {}

    def late(self) -> str:
        """What is late, in words, once in a step; otherwise nothing. Called every few seconds, from any thread."""
        timing, now = self._timing(), time.monotonic()
        if timing is not self._step:
            self._learn(dict(self._step))
            self._step, self._seen, self._since, self._reported = timing, {}, now, False
        if (seen := dict(timing)) != self._seen:
            self._seen, self._since = seen, now
        last = next(reversed(self._seen), "")
        running = self._next.get(last, set()) - {WHOLE} or self._next.get(last, set())
        longest = max((self._longest[name] for name in running), default=None)
        limit = self._stop_after if longest is None else TIMES * longest
        rollouts = not last or running & set(ROLLOUTS)
        if self._reported or rollouts or limit is None or self._warn_after is None:
            return ""
        if (waited := now - self._since) < max(limit, self._warn_after):
            return ""
        self._reported = True
        ended = f"the trainer's process has finished no phase of its step for {waited:.0f} s. The last one was {last}"
        if longest is None:
            return ended
        return f"{ended}, the next one is {' or '.join(sorted(running))}, which took at most {longest:.1f} s before"

    def _learn(self, ended: dict[str, float]) -> None:
        names = list(ended)
        for name, following in zip(["", *names], names, strict=False):
            self._next.setdefault(name, set()).add(following)
            self._longest[following] = max(self._longest.get(following, 0.0), ended[following])
