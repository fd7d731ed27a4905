"""Results of calls in an SQLite file that any number of processes and threads may use at once.

When `store` returns, the result is synced to the disk, in a transaction of its own: a kill does not lose it. The first
result stored for a call stays, so that the same call always gets the same result. A damaged file is an error with a
remedy; it is never emptied or replaced.

Bounds: after each `store` the file holds at most `max_rows` results and `max_mb` MiB of content (results, arguments,
and ROW_BYTES for each); the least recently used results are removed first. The file itself is up to a third larger,
beside a WAL of a few MiB, and does not shrink: freed space is used again. Counts and times of uses are written with the
next result, after FLUSH_USES uses, or after FLUSH_S seconds; a kill loses only those.

The write-ahead log needs a local disk, not NFS. Workers on several machines share a cache through the server
(`python -m verl_ext.tools.simulator_server`).
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from verl_ext.storage.sqlite import Schema, open_reader, open_writer, remedy, transaction
from verl_ext.tools.base import ToolError
from verl_ext.tools.simulator.keys import CallKey

MAX_ROWS, MAX_MB = 1_000_000, 1024
# Bytes of a row beside its texts: key, version, model, times, two indexes (measured on the file).
ROW_BYTES = 250
FLUSH_USES, FLUSH_S = 10_000, 60.0

# `size` is kept by the triggers, in the transaction that changes it: counting rows would read all of them.
SCHEMA = Schema(
    what="cache",
    application=0x76785343,  # "vxSC"
    version=1,
    tables="""
CREATE TABLE results (
    key BLOB PRIMARY KEY, tool TEXT NOT NULL, version TEXT NOT NULL, arguments TEXT NOT NULL, result TEXT NOT NULL,
    model TEXT NOT NULL, created REAL NOT NULL, used REAL NOT NULL, hits INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL
);
CREATE INDEX by_use ON results (used);
CREATE TABLE size (rows INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO size VALUES (0, 0);
CREATE TRIGGER grown AFTER INSERT ON results BEGIN
    UPDATE size SET rows = rows + 1, bytes = bytes + new.bytes;
END;
CREATE TRIGGER shrunk AFTER DELETE ON results BEGIN
    UPDATE size SET rows = rows - 1, bytes = bytes - old.bytes;
END;
""",
    made_by="record one (mode=record)",
    needs_wal=True,
)
FIND = "SELECT result FROM results WHERE key = ?"
FIRST = "SELECT key, result FROM (SELECT key, result FROM results ORDER BY rowid LIMIT ?) ORDER BY key"
USED = "UPDATE results SET hits = hits + ?, used = max(used, ?) WHERE key = ?"
ADD = (
    "INSERT INTO results (key, tool, version, arguments, result, model, created, used, bytes) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING"
)
OLDEST = "SELECT key, bytes FROM results WHERE key != ? ORDER BY used, rowid"


class ResultCache:
    """A cache file. Thread-safe; each process must open it for itself (not before a fork).

    Args:
        path: of the file. If it is writable and missing, it is created with its folder.
        writable: False only reads, and does not count uses in the file.
        max_rows, max_mb: the bounds that this process enforces; other processes enforce their own.
        verify: check the whole file now (SQLite's quick_check: a second for some hundred MiB).

    Attributes:
        evicted: number of results that this process has removed for the bounds.

    Raises:
        ValueError: the file is damaged, of another kind or version, or cannot be read or written.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        writable: bool = True,
        max_rows: int = MAX_ROWS,
        max_mb: int = MAX_MB,
        verify: bool = True,
    ) -> None:
        self.path, self.writable = Path(path), writable
        self.max_rows, self.max_bytes = max_rows, max_mb * 1024 * 1024
        self.evicted = 0
        self._lock = threading.Lock()  # guards the reading connection and `_uses`
        self._uses: dict[bytes, tuple[int, float]] = {}
        self._flushed, self._flushing = time.monotonic(), False
        self._writer = open_writer(self.path, SCHEMA, verify) if writable else None
        self._reader = open_reader(self.path, SCHEMA, verify=verify and not writable)
        # One writing thread: SQLite allows one writer at a time, and a sync must not block an event loop.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="simulator-cache")

    def find(self, key: CallKey) -> str | None:
        """The result of a call as JSON, or None.

        Raises:
            ToolError: the file cannot be read.
        """
        with self._reading() as reader:
            row = reader.execute(FIND, (key.digest,)).fetchone()
            if row is None:
                return None
            if self._writer is not None:
                self._note(key.digest)
            return row[0]

    def store(self, key: CallKey, result: str, model: str) -> Future[str]:
        """Store the result of a call. The future gives the stored result, which may be an earlier one.

        Args:
            result: JSON.
            model: name of the model that simulated the tool.

        Raises (by the future):
            ToolError: the file cannot be written; nothing was stored.
        """
        return self._thread.submit(self._store, key, result, model)

    def info(self) -> dict[str, int]:
        """{"results", "bytes"} of the file, and how many results this process has "evicted"."""
        with self._reading() as reader:
            rows, size = reader.execute("SELECT rows, bytes FROM size").fetchone()
        return {"results": rows, "bytes": size, "evicted": self.evicted}

    def content(self, first: int = -1) -> str:
        """Hash of the `first` results stored (-1: of all): two caches with the same hash give the same answers."""
        digest = hashlib.sha256()
        with self._reading() as reader:
            for key, result in reader.execute(FIRST, (first,)):
                digest.update(key + hashlib.sha256(result.encode()).digest())
        return digest.hexdigest()[:16]

    def close(self) -> None:
        """Write the uses and close the file."""
        if self._writer is not None:
            self._thread.submit(self._flush).result()
        self._thread.shutdown()
        with self._lock:
            self._reader.close()
        if self._writer is not None:
            self._writer.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """The reading connection, for one thread; its errors become ToolErrors."""
        try:
            with self._lock:
                yield self._reader
        except sqlite3.Error as error:
            raise ToolError(remedy(self.path, SCHEMA, error)) from error

    def _note(self, digest: bytes) -> None:
        """Remember a use, and start a flush when one is due. The caller holds the lock."""
        self._uses[digest] = (self._uses.get(digest, (0, 0.0))[0] + 1, time.time())
        due = len(self._uses) >= FLUSH_USES or time.monotonic() - self._flushed > FLUSH_S
        if due and not self._flushing:
            self._flushing = True
            self._thread.submit(self._flush)

    def _flush(self) -> None:
        """Write the uses. If that fails they are kept for the next flush; a failing `store` reports the error."""
        try:
            self._write(lambda writer: None)
        except ToolError:
            pass

    def _store(self, key: CallKey, result: str, model: str) -> str:
        now = time.time()
        size = len(result.encode()) + len(key.arguments) + ROW_BYTES
        row = (key.digest, key.tool, key.version, key.arguments, result, model, now, now, size)

        def add(writer: sqlite3.Connection) -> str:
            writer.execute(ADD, row)
            self._evict(writer, key.digest)
            return writer.execute(FIND, (key.digest,)).fetchone()[0]

        return self._write(add)

    def _write(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        """Write the uses and do `work` in one transaction. Runs in the writing thread."""
        with self._lock:
            uses, self._uses = self._uses, {}
        try:
            with transaction(self._writer):
                self._writer.executemany(USED, [(count, last, key) for key, (count, last) in uses.items()])
                done = work(self._writer)
        except sqlite3.Error as error:
            with self._lock:
                for key, (count, last) in uses.items():
                    more, later = self._uses.get(key, (0, last))
                    self._uses[key] = (count + more, later)
            raise ToolError(remedy(self.path, SCHEMA, error)) from error
        finally:
            self._flushed, self._flushing = time.monotonic(), False
        return done

    def _evict(self, writer: sqlite3.Connection, keep: bytes) -> None:
        """Remove the least recently used results until the bounds hold."""
        rows, size = writer.execute("SELECT rows, bytes FROM size").fetchone()
        removed = []
        for key, freed in writer.execute(OLDEST, (keep,)) if rows > self.max_rows or size > self.max_bytes else ():
            if rows <= self.max_rows and size <= self.max_bytes:
                break
            removed.append((key,))
            rows, size = rows - 1, size - freed
        writer.executemany("DELETE FROM results WHERE key = ?", removed)
        if removed and not self.evicted:
            print(
                f"Note: {self.path} is full ({self.max_rows} results or {self.max_bytes >> 20} MiB). The least "
                "recently used results are removed, and a replay will miss them. Remedy: a larger max_rows or max_mb.",
                flush=True,
            )
        self.evicted += len(removed)
