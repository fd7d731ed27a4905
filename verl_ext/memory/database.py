"""The memories on disk: one SQLite file, written in one transaction per step.

memories   the constant part of a memory: id, agent, query, plan (JSON), output, vector of the query (float32 LE)
scores     the changing part: id, time, score. In a table of its own, because each step's decay writes most rows.
meta       step (the last one applied), next_id, similarity
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from verl_ext.memory.similarity import HashingSimilarity, Similarity
from verl_ext.memory.step import Changes
from verl_ext.memory.view import Shelf, Text, View
from verl_ext.storage.sqlite import Schema, StorageError, copy_to, open_reader, open_writer, remedy, transaction

FILE = "memory.sqlite"
SCHEMA = Schema(
    what="memory",
    application=0x76_4D_65_6D,  # "vMem"
    version=1,
    tables="""
CREATE TABLE memories (
    id INTEGER PRIMARY KEY, agent TEXT NOT NULL, query TEXT NOT NULL, plan TEXT NOT NULL, output TEXT NOT NULL,
    vector BLOB NOT NULL);
CREATE TABLE scores (id INTEGER PRIMARY KEY, time INTEGER NOT NULL, score REAL NOT NULL);
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
""",
    made_by="name the folder given to `snapshot`",
)
ROWS = """
SELECT id, time, score, vector, query, plan, output FROM memories JOIN scores USING (id) WHERE agent = ? ORDER BY id
"""


class Database:
    """The file of a store, open for writing, by one thread at a time."""

    def __init__(self, path: Path, similarity: Similarity):
        def fill(connection: sqlite3.Connection) -> None:
            values = [("step", 0), ("next_id", 1), ("similarity", similarity.name)]
            connection.executemany("INSERT INTO meta VALUES (?, ?)", values)

        self.path, self._similarity = path, similarity
        self._connection = open_writer(path, SCHEMA, verify=True, fill=fill)
        try:
            _check_similarity(self._connection, path, similarity)
        except BaseException:
            self._connection.close()
            raise

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing. Raises StorageError when the disk refuses."""
        try:
            with transaction(self._connection):
                yield
        except sqlite3.Error as error:
            raise StorageError(f"the memory in {self.path} could not be written: {error}") from error

    def load(self) -> View:
        """All stored memories."""
        return _load(self._connection, self._similarity)

    def write(self, view: View, changes: Changes) -> None:
        """Apply `changes`, which lead from the last version to `view`, in one transaction."""
        many = self._connection.executemany
        gone = [(number,) for number in changes.deleted]
        memories = [
            (new.id, new.agent, new.query, json.dumps(new.plan), new.output, vector.astype("<f4").tobytes())
            for new, vector in changes.inserted
        ]
        scores = [(new.id, new.time, new.score) for new, _ in changes.inserted]
        with self._transaction():
            many("DELETE FROM memories WHERE id = ?", gone)
            many("DELETE FROM scores WHERE id = ?", gone)
            many("UPDATE scores SET time = ?, score = ? WHERE id = ?", changes.scored)
            many("INSERT INTO memories VALUES (?, ?, ?, ?, ?, ?)", memories)
            many("INSERT INTO scores VALUES (?, ?, ?)", scores)
            many("UPDATE meta SET value = ? WHERE name = ?", [(view.version, "step"), (view.next_id, "next_id")])

    def clear(self) -> None:
        """Delete all memories, in one transaction."""
        with self._transaction():
            for table in ("memories", "scores"):
                self._connection.execute(f"DELETE FROM {table}")
            self._connection.executemany("UPDATE meta SET value = ? WHERE name = ?", [(0, "step"), (1, "next_id")])

    def copy_to(self, path: Path) -> None:
        """Copy the memory as of the last transaction into one file; a kill leaves the old file or the new one."""
        try:
            copy_to(self._connection, path)
        except (sqlite3.Error, OSError) as error:
            raise StorageError(f"the memory could not be copied to {path}: {error}") from error

    def copy_from(self, path: Path) -> None:
        """Replace all memories by those of a copy, in one transaction: a kill leaves all of the old or all of the new.

        Raises:
            ValueError: there is no such copy, it is damaged, or it is no memory; nothing is replaced.
        """
        with _open_copy(path, self._similarity) as copy:
            copy.backup(self._connection)

    def close(self) -> None:
        """Close the file and merge its -wal file into it."""
        self._connection.close()


def read_snapshot(folder: str | Path, similarity: Similarity | None = None) -> View:
    """The memory in the folder of a snapshot, e.g. of a checkpoint, for reading without a lock.

    Raises:
        ValueError: there is none, or it is damaged or has another similarity or version.
    """
    similarity = similarity or HashingSimilarity()
    with _open_copy(Path(folder) / FILE, similarity) as copy:
        return _load(copy, similarity)


@contextmanager
def _open_copy(path: Path, similarity: Similarity) -> Iterator[sqlite3.Connection]:
    with closing(open_reader(path, SCHEMA, verify=True)) as copy:
        _check_similarity(copy, path, similarity)
        try:
            yield copy
        except sqlite3.Error as error:
            raise ValueError(remedy(path, SCHEMA, error)) from error


def _load(connection: sqlite3.Connection, similarity: Similarity) -> View:
    run = connection.execute
    meta = dict(run("SELECT name, value FROM meta"))
    shelves = {}
    for (agent,) in run("SELECT DISTINCT agent FROM memories ORDER BY agent").fetchall():
        ids, times, scores, vectors, *texts = zip(*run(ROWS, (agent,)), strict=True)
        table = np.frombuffer(b"".join(vectors), dtype="<f4").astype(np.float32).reshape(len(ids), -1)
        triples: list[Text] = [(query, tuple(json.loads(plan)), out) for query, plan, out in zip(*texts, strict=True)]
        arrays = np.array(ids, np.int64), np.array(times, np.int64), np.array(scores, np.float64)
        shelves[agent] = Shelf(*arrays, np.ascontiguousarray(table.T), triples)
    return View(meta["step"], similarity, shelves, meta["next_id"])


def _check_similarity(connection: sqlite3.Connection, path: Path, similarity: Similarity) -> None:
    """Raises ValueError unless the vectors in the file are of this similarity."""
    (name,) = connection.execute("SELECT value FROM meta WHERE name = 'similarity'").fetchone()
    if name != similarity.name:
        raise ValueError(
            f"{path} holds vectors of the similarity {name!r}, given is {similarity.name!r}; give the former, or begin "
            "a new memory in another folder."
        )
