"""A process that writes a memory until it is killed, and says what it is about to do and what it has done.

The same steps can be made without a disk (`states`), for what must be found afterwards.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from tests.memory.histories import Halves
from tests.memory.histories import episodes as random_episodes
from verl_ext.memory import MemoryStore, Rules, View
from verl_ext.memory.step import evolve

RULES = Rules(alpha=0.002, capacity=60)


def made_at(step: int, view: View) -> list:
    """The episodes of a step: random, but always the same."""
    return random_episodes(random.Random(step), view, step, questions=8, size=8)


def states() -> Iterator[View]:
    """The views after steps 0, 1, 2, …, by the pure functions alone."""
    view = View(0, Halves())
    while True:
        yield view
        view, _, _ = evolve(view, view.version + 1, made_at(view.version + 1, view), RULES)


def write(folder: Path, out: Connection) -> None:
    """Steps on and on. Sends ("open", version), then ("begin", step) and ("done", step) around each one.

    Every third step makes a copy and restores it; "begin" and "done" stand around these, too.
    """
    with MemoryStore(folder / "memory", RULES, Halves()) as store:
        out.send(("open", store.version))
        while True:
            step = store.version + 1
            episodes = made_at(step, store.view())
            out.send(("begin", step))
            store.apply(step, episodes)
            if step % 3 == 0:
                store.snapshot(folder / "snapshot")
                store.restore(folder / "snapshot")
            out.send(("done", step))


def write_until(folder: Path, statement: int) -> None:
    """One step; the process kills itself just before SQLite comes to the n-th statement of it."""
    with MemoryStore(folder, RULES, Halves()) as store:
        step, left = store.version + 1, [statement]

        def count(_: str) -> None:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        episodes = made_at(step, store.view())
        store._database._connection.set_trace_callback(count)
        store.apply(step, episodes)
