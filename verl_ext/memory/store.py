"""The memory of a system: the memories of all its agents, separate for each agent, in one folder."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from verl_ext.memory.database import FILE, Database
from verl_ext.memory.evolution import Rules
from verl_ext.memory.records import Episode
from verl_ext.memory.similarity import HashingSimilarity, Similarity
from verl_ext.memory.step import evolve
from verl_ext.memory.view import View
from verl_ext.storage.files import lock_folder


class MemoryStore:
    """Writes the memory, step by step, and gives views of it to readers.

    One process writes (the trainer); it holds the folder's lock. Readers use a `View`: the state after one step, which
    no later step changes. Other processes, also on other machines, are sent `view()` once per step (it can be pickled).
    Methods may be called from any thread.

    Args:
        folder: created if it does not exist. Its memory is opened if it has one.
        rules: hyperparameters; those of Algorithm 1 by default.
        similarity: hashed n-grams by default; an existing memory must have been made with the same one.

    Raises:
        ValueError: another process writes there, or the memory is damaged or has another similarity or version.
    """

    def __init__(self, folder: str | Path, rules: Rules | None = None, similarity: Similarity | None = None):
        self.folder, self.rules = Path(folder), rules or Rules()
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(self.folder)
        if lock is None:
            raise ValueError(f"another process writes the memory in {self.folder}; stop it, or choose another folder.")
        try:
            self._database = Database(self.folder / FILE, similarity or HashingSimilarity())
        except BaseException:
            lock.close()
            raise
        self._lock = lock
        self._writing = threading.Lock()
        self._show(self._database.load())

    @property
    def version(self) -> int:
        """The last step that was applied; 0 before the first."""
        return max(self._views)

    def view(self, version: int | None = None) -> View:
        """The memories as they were after step `version`: the last one (None), or the one before it.

        Raises:
            ValueError: no view of this version is kept.
        """
        views = self._views
        version = max(views) if version is None else version
        if version not in views:
            raise ValueError(
                f"no view of version {version!r} is kept; there are {sorted(views)}. Take one when a step begins."
            )
        return views[version]

    def apply(self, step: int, episodes: Sequence[Episode]) -> dict[str, int]:
        """Update the memory with the trajectories of a training step; the result is on disk when this returns.

        To be called once per step, after its rollouts, also for a step without episodes, because time counts. Inserted
        memories can be recalled from version `step`, that is, in the next step.

        Returns:
            Counts, by `step.COUNTS`.

        Raises:
            ValueError: see `step.evolve`; nothing has changed.
            StorageError: the disk refused; nothing has changed.
        """
        with self._writing:
            before = self.view()
            after, changes, counts = evolve(before, step, episodes, self.rules)
            self._database.write(after, changes)
            self._show(before, after)  # trajectories that began before this step may still read the old view
        return counts

    def _show(self, *views: View) -> None:
        """Publish views with one assignment: a reader sees the old mapping or the new one."""
        self._views = {view.version: view for view in views}

    def snapshot(self, folder: str | Path) -> Path:
        """Copy the memory as of the last step into `folder` (a checkpoint). A kill leaves the old copy or the new one.

        Returns the file. Raises StorageError when it cannot be written.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with self._writing:
            self._database.copy_to(folder / FILE)
        return folder / FILE

    def restore(self, folder: str | Path) -> None:
        """Replace the memory by the copy in `folder`. A kill leaves all of the old one or all of the new one.

        Raises ValueError if there is no copy, or it is damaged or has another similarity or version.
        """
        with self._writing:
            self._database.copy_from(Path(folder) / FILE)
            self._show(self._database.load())

    def clear(self) -> None:
        """Delete all memories and return to version 0. A kill leaves all of the memories or none."""
        with self._writing:
            self._database.clear()
            self._show(self._database.load())

    def close(self) -> None:
        """Release file and folder."""
        with self._writing:
            self._database.close()
            self._lock.close()

    def __enter__(self) -> MemoryStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
