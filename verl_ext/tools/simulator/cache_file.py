"""Opening a cache's file: made if it is new, refused with a remedy if it is damaged or something else."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random

# Says in the file's header whose file it is ("vxSC"), and in which form its tables are.
APPLICATION, FORMAT = 0x76785343, 1
# Seconds that a writer waits for another process's transaction.
BUSY_S = 30.0

# `size` is kept by the triggers, in the transaction that changes it: counting rows would read all of them.
TABLES = """
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
"""


def open_writer(path: Path, verify: bool = True) -> sqlite3.Connection:
    """A connection for one thread that writes; the file and its folder are made if there are none.

    Raises:
        ValueError: see `ResultCache`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise ValueError(remedy(path, error)) from error
    try:
        _make(writer, path)
        _check(writer, path, verify)
    except sqlite3.Error as error:
        writer.close()
        raise ValueError(remedy(path, error)) from error
    except BaseException:
        writer.close()
        raise
    return writer


def open_reader(path: Path, verify: bool = True) -> sqlite3.Connection:
    """A connection that only reads.

    Raises:
        ValueError: see `ResultCache`; or there is no file.
    """
    if not path.is_file():
        raise ValueError(f"there is no cache at {path}. Remedy: record one (mode=record), or correct the path.")
    uri = f"file:{quote(str(path.resolve()))}?mode=ro"
    # Of a folder that this user cannot write SQLite can read a file only if nobody else changes it.
    uri += "" if os.access(path.parent, os.W_OK) or Path(f"{path}-wal").exists() else "&immutable=1"
    try:
        reader = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise ValueError(remedy(path, error)) from error
    try:
        _check(reader, path, verify)
    except sqlite3.Error as error:
        reader.close()
        raise ValueError(remedy(path, error)) from error
    except BaseException:
        reader.close()
        raise
    return reader


def remedy(path: Path, error: Exception) -> str:
    """What is wrong with a cache's file, and what to do."""
    if type(error) is sqlite3.DatabaseError:  # not one of its subclasses: malformed, or no database at all
        return (
            f"the cache {path} is damaged, or no cache ({error}). It is left as it is. Remedy: restore a copy; or save "
            f"what can be read (sqlite3 {path} .recover | sqlite3 NEW); or move it away, with its -wal and -shm, and "
            "record again."
        )
    return (
        f"the cache {path} cannot be used ({error}). Remedy: a local disk (not NFS) with room, a folder that this user "
        f"may write, no process that holds it for more than {BUSY_S:g} s."
    )


def _make(writer: sqlite3.Connection, path: Path) -> None:
    """WAL, and the tables in one transaction if the file is new."""
    # Two processes that make the same file meet here, and SQLite does not wait for the other one.
    for attempt in Retrying(
        stop=stop_after_delay(BUSY_S), wait=wait_random(0, 0.1), retry=retry_if_exception(_locked), reraise=True
    ):
        with attempt:
            _foreign(writer, path)
            mode = writer.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise ValueError(f"{path}: SQLite cannot have a WAL there (it says {mode!r}). Remedy: a local disk, not NFS.")
    writer.execute("PRAGMA synchronous = FULL")
    with writer:
        writer.execute("BEGIN IMMEDIATE")
        if _is_new(writer):
            for statement in _statements():
                writer.execute(statement)
            writer.execute(f"PRAGMA application_id = {APPLICATION}")
            writer.execute(f"PRAGMA user_version = {FORMAT}")


def _check(connection: sqlite3.Connection, path: Path, verify: bool) -> None:
    if _is_new(connection):
        raise ValueError(f"the cache {path} is empty: nothing was ever recorded there. Remedy: record (mode=record).")
    _foreign(connection, path)
    if verify:
        found = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
        if found != ["ok"]:
            raise sqlite3.DatabaseError(" ".join("; ".join(found).split()))


def _foreign(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a database of something else, and one of another format, before anything in it changes."""
    if _is_new(connection):
        return
    whose, form = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
    if whose != APPLICATION:
        raise ValueError(f"{path} is a database of something else, not a simulator's cache. Remedy: another path.")
    if form != FORMAT:
        raise ValueError(
            f"the cache {path} has format {form}, this version reads format {FORMAT}. Remedy: the version that wrote "
            "it, or another path."
        )


def _is_new(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0


def _locked(error: BaseException) -> bool:
    return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)


def _statements() -> list[str]:
    """TABLES one by one: `executescript` would commit the transaction first."""
    found, statement = [], ""
    for line in TABLES.strip().splitlines():
        statement += f"{line}\n"
        if sqlite3.complete_statement(statement):
            found.append(statement)
            statement = ""
    return found
