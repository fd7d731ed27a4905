"""Python's garbage collector in a rollout worker."""

from __future__ import annotations

import gc

# Objects made until young ones are looked at, times that until middle-aged ones are, times that until all are. Python's
# own 700, 10, 10 looks at all records of all open trajectories every few seconds: with 2,000 of them that held up the
# event loop for up to a second at a time, and took a tenth of the worker's processor time. A look takes as long as the
# objects' lists of tokens are: 10,000 young objects at once, or all middle-aged ones, held it up for a quarter.
THRESHOLDS = (1_000, 10_000, 1_000)


def collect_between_steps() -> None:
    """Leave what is there now out of all later collections, and let those of all objects be rare.

    Whoever calls this calls `gc.collect()` once a step.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
