"""Questions that are cut: their step has enough others (`mas.sampling.oversample`), so their sampling ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

from verl_ext.mas.forest import CLOSE_TIMEOUT

# Seconds that questions have to end, whose calls, tools and workflows have `CLOSE_TIMEOUT` each to clean up.
END_TIMEOUT = 3 * CLOSE_TIMEOUT


class Waste(NamedTuple):
    """What cut questions have cost: trajectories begun, their seconds, and the tokens of their outputs."""

    trajectories: int = 0
    seconds: float = 0.0
    tokens: int = 0


def together(found: Iterable[Waste]) -> Waste:
    """The sum."""
    return Waste(*(sum(column) for column in zip(Waste(), *found, strict=True)))


class Cuts:
    """The questions of a rollout worker that are being cut. All methods are for its event loop."""

    def __init__(self) -> None:
        self._uids: set[str] = set()
        # By uid, until it is taken.
        self.waste: dict[str, Waste] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._uids

    async def end(self, uids: set[str], tasks: list[asyncio.Task[Any]]) -> None:
        """Cancel these tasks, the sampling of these questions, and wait until they have ended."""
        self._uids |= uids
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=END_TIMEOUT)
        # One that ignores its cancellation may end later: it must store nothing then.
        self._uids -= uids - {task.get_name() for task in tasks if not task.done()}

    def take(self) -> Waste:
        """What the questions that were cut since the last call have cost."""
        found, self.waste = self.waste, {}
        return together(found.values())
