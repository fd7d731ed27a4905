"""Python's garbage collector in a rollout worker."""

from __future__ import annotations

import asyncio
import gc

# Objects made, less those gone, until young ones are looked at, times that until middle-aged ones are, times that until
# all are. Python's own 700, 10, 10 looks at all records of all open trajectories every few seconds: with 2,000 of them
# that held up the event loop for up to a second at a time, and took a tenth of the worker's processor time. A look at
# the middle-aged, nearly all objects of a step, takes as long: a step has none.
THRESHOLDS = (1_000, 1_000_000, 1_000)
# Seconds between further looks at young objects. Where about as many objects go as are made, Python does not look until
# there are tens of thousands of young ones, for 50 ms.
INTERVAL = 0.1


def collect_between_steps(loop: asyncio.AbstractEventLoop) -> None:
    """Leave what is there now out of all later collections; look at young objects alone, but often, on this loop.

    Whoever calls this calls `gc.collect()` once a step.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    loop.call_soon_threadsafe(_look_at_young, loop)


def _look_at_young(loop: asyncio.AbstractEventLoop) -> None:
    gc.collect(0)
    loop.call_later(INTERVAL, _look_at_young, loop)
