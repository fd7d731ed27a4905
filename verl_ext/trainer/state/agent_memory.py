"""The agents' memory in training: sent to rollouts, updated by each step, saved in checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from verl_ext.memory import Episode, MemoryStore, Use, View
from verl_ext.trainer.build import similarity_of
from verl_ext.trainer.sections import MemorySection
from verl_ext.trainer.state import checkpoint

logger = logging.getLogger(__name__)

FOLDER = "memory"


class AgentMemory:
    """`mas.memory` of a run. The trainer writes it after the rollouts of a step; the rollouts of the next step read it.

    The memory is in `<run>/memory`, and a copy of it in every checkpoint. A run that resumes from a checkpoint uses the
    memory of that checkpoint; later changes are lost.

    Args:
        section: None: there is no memory, and all methods do nothing.
        folder: of the run.
    """

    def __init__(self, section: MemorySection | None, folder: str | Path):
        self.section, self.folder = section, Path(folder)
        self._store: MemoryStore | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """What a checkpoint of this run holds of it."""
        return () if self.section is None else (FOLDER,)

    def start(self, loaded: Path | None) -> None:
        """Begin with the memory of a checkpoint (…/global_step_N); with an empty one if there is none.

        Raises:
            ValueError: the memory is damaged, of another encoder, or another run writes it.
        """
        if self.section is None:
            return
        self._store = self._open(self.section)
        if loaded is not None and (loaded / FOLDER).is_dir():
            self._store.restore(loaded / FOLDER)
            return
        if loaded is not None:
            logger.warning("%s is of a run without memory: this one begins with an empty memory", loaded)
        if len(self._store.view()):
            self._store.close()
            checkpoint.set_aside(self.folder, [FOLDER])
            self._store = self._open(self.section)

    def _open(self, section: MemorySection) -> MemoryStore:
        return MemoryStore(self.folder / FOLDER, section, similarity_of(section.encoder))

    def publish(self, reach: Callable[[View], None]) -> None:
        """Let rollouts see the memory: `reach` sends a view of it to all workers, now and after each step."""
        self._reach = reach
        if self._store is not None:
            reach(self._store.view())

    def learn(self, step: int, episodes: Iterable[Episode]) -> dict[str, float]:
        """Let the memory evolve by a step's trajectories; its next rollouts see it. Returns memory/*."""
        if self._store is None:
            return {}
        episodes = list(episodes)
        uses = [use for episode in episodes for use in episode.uses]
        rates = {"hit_rate": _share(bool(use.recalled) for use in uses), "same_rate": self._same_rate(uses)}
        counts = self._store.apply(step, episodes)
        self._reach(self._store.view())
        return {f"memory/{name}": float(value) for name, value in (counts | rates).items()}

    def _same_rate(self, uses: Sequence[Use]) -> float:
        """Share of the agents' parts that recalled a memory of exactly their query, before this step's changes."""
        shelves = self._store.view().shelves

        def same(use: Use) -> bool:
            rows = shelves[use.agent].rows_of(use.recalled) if use.agent in shelves else ()
            return any(row >= 0 and shelves[use.agent].texts[row][0] == use.query for row in rows)

        return _share(same(use) for use in uses)

    def save(self, step: int) -> None:
        """Copy the memory into the checkpoint of `step`; remove copies whose weights verl has removed."""
        if self._store is None:
            return
        checkpoint.remove_stale(self.folder, FOLDER)
        self._store.snapshot(self.folder / f"global_step_{step}" / FOLDER)

    def close(self) -> None:
        """Release the lock of the folder."""
        if self._store is not None:
            self._store.close()


def _share(flags: Iterable[bool]) -> float:
    """Of those that are true, 0 if there are none at all."""
    flags = list(flags)
    return sum(flags) / len(flags) if flags else 0.0
