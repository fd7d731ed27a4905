"""The memories on disk: one SQLite file, written in one transaction per step.

memories   what a memory is: id, agent, query, plan (JSON), output, vector of the query (float32, little-endian)
scores     what changes: id, time, score. Apart from the texts, because a step's decay writes most of its rows.
meta       step (the last one applied), next_id, similarity
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from verl_ext.memory.similarity import Similarity
from verl_ext.memory.step import Changes
from verl_ext.memory.view import Shelf, Text, View
from verl_ext.tools.base import ToolError

FILE = "memory.sqlite"
APPLICATION, SCHEMA = 0x76_4D_65_6D, 1  # "vMem"; raise SCHEMA with every change of the tables
BUSY_SECONDS = 30.0
TABLES = """
CREATE TABLE memories (
    id INTEGER PRIMARY KEY, agent TEXT NOT NULL, query TEXT NOT NULL, plan TEXT NOT NULL, output TEXT NOT NULL,
    vector BLOB NOT NULL);
CREATE TABLE scores (id INTEGER PRIMARY KEY, time INTEGER NOT NULL, score REAL NOT NULL);
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
"""


ROWS = """
SELECT id, time, score, vector, query, plan, output FROM memories JOIN scores USING (id) WHERE agent = ? ORDER BY id
"""


class Database:
    """The file of a store, open for writing. Not to be shared by threads that write."""

    def __init__(self, path: Path, similarity: Similarity):
        self.path, self._similarity = path, similarity
        self._connection = sqlite3.connect(path, BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            # Who looks into the file meanwhile and the writer do not wait for each other.
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
            if not self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                self._create()
            check(self._connection, path, similarity)
        except BaseException as error:
            self._connection.close()
            if not isinstance(error, sqlite3.Error):
                raise
            raise ValueError(f"{path} could not be opened as a memory ({error}); remove or restore it.") from error

    def _create(self) -> None:
        with self._transaction():
            for statement in TABLES.split(";"):
                self._connection.execute(statement)
            self._connection.execute(f"PRAGMA application_id={APPLICATION}")
            self._connection.execute(f"PRAGMA user_version={SCHEMA}")
            values = [("step", 0), ("next_id", 1), ("similarity", self._similarity.name)]
            self._connection.executemany("INSERT INTO meta VALUES (?, ?)", values)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing. Raises ToolError when the disk refuses."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            yield
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise ToolError(f"the memory in {self.path} could not be written: {error}") from error
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def load(self) -> View:
        """All that is stored."""
        return _load(self._connection, self._similarity)

    def write(self, view: View, changes: Changes) -> None:
        """Bring the file from the version before to `view`, in one transaction."""
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
        """A copy as of the last transaction, in one file; a kill leaves the old one or the new one."""
        temporary = path.with_name(f".{path.name}.part")
        for rest in path.parent.glob(f"{temporary.name}*"):  # of a copy that was killed, its journal included
            rest.unlink()
        try:
            with closing(sqlite3.connect(temporary, isolation_level=None)) as copy:
                self._connection.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")  # no -wal file beside a checkpoint
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except (sqlite3.Error, OSError) as error:
            raise ToolError(f"the memory could not be copied to {path}: {error}") from error

    def copy_from(self, path: Path) -> None:
        """Replace all that is stored by a copy, as one transaction: a kill leaves all of the old or all of the new.

        Raises:
            ValueError: there is no such copy, or it is damaged or of something else; nothing is replaced.
        """
        if not path.is_file():
            raise ValueError(f"there is no memory at {path}; name the folder given to `snapshot`.")
        try:
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as copy:
                check(copy, path, self._similarity)
                found = copy.execute("PRAGMA quick_check").fetchone()[0]
                if found != "ok":
                    raise ValueError(f"{path} is damaged ({found}); restore another snapshot.")
                copy.backup(self._connection)
        except sqlite3.Error as error:
            raise ValueError(f"{path} could not be restored ({error}); it may be damaged: restore another.") from error

    def close(self) -> None:
        """Close the file; its -wal file is merged into it."""
        self._connection.close()


def read_copy(path: Path, similarity: Similarity) -> View:
    """What a copy holds (`copy_to`), without writing anything.

    Raises:
        ValueError: there is no such copy, or it is damaged or of something else.
    """
    if not path.is_file():
        raise ValueError(f"there is no memory at {path}; name the folder given to `snapshot`.")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as copy:
            check(copy, path, similarity)
            return _load(copy, similarity)
    except sqlite3.Error as error:
        raise ValueError(f"{path} could not be read ({error}); it may be damaged: take another.") from error


def _load(connection: sqlite3.Connection, similarity: Similarity) -> View:
    run = connection.execute
    meta = dict(run("SELECT name, value FROM meta"))
    shelves = {}
    for (agent,) in run("SELECT DISTINCT agent FROM memories ORDER BY agent").fetchall():
        ids, times, scores, vectors, *texts = zip(*run(ROWS, (agent,)), strict=True)
        table = np.frombuffer(b"".join(vectors), dtype="<f4").astype(np.float32).reshape(len(ids), -1)
        triples: list[Text] = [
            (query, tuple(json.loads(plan)), output) for query, plan, output in zip(*texts, strict=True)
        ]
        arrays = np.array(ids, np.int64), np.array(times, np.int64), np.array(scores, np.float64)
        shelves[agent] = Shelf(*arrays, np.ascontiguousarray(table.T), triples)
    return View(meta["step"], similarity, shelves, meta["next_id"])


def check(connection: sqlite3.Connection, path: Path, similarity: Similarity) -> None:
    """Raises ValueError unless the file is a memory of this schema and similarity."""
    found = tuple(connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
    if found != (APPLICATION, SCHEMA):
        raise ValueError(
            f"{path} is no memory of this version of verl_ext (application {found[0]:#x}, schema {found[1]}; needed "
            f"{APPLICATION:#x}, {SCHEMA}); choose another folder, or remove the file."
        )
    (name,) = connection.execute("SELECT value FROM meta WHERE name = 'similarity'").fetchone()
    if name != similarity.name:
        raise ValueError(
            f"{path} holds vectors of the similarity {name!r}, given is {similarity.name!r}; give the former, or begin "
            "a new memory in another folder."
        )
