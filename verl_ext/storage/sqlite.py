"""SQLite databases that are written by one process or by several, and that say whose they are.

The header of a file holds the application and the version of its tables, so that another program's database is refused
before anything in it changes. A damaged file is an error with a remedy; it is never emptied or replaced. With a
write-ahead log (WAL) readers and the writer do not wait for each other; WAL needs shared memory, hence a local disk.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random

from verl_ext.storage.files import replacing

BUSY_S = 30.0  # that a writer waits for another process's transaction


class StorageError(Exception):
    """The disk refused to write what is stored; nothing has changed. The message says where and why."""


@dataclass(frozen=True)
class Schema:
    """What a database is.

    Attributes:
        what: for messages ("cache", "memory").
        application: 32 bits that say in the file's header whose file it is.
        version: of the tables; raise it with every change of them.
        tables: the statements that make them, each ends with a semicolon.
        made_by: how one comes into being, for messages about a missing file.
        needs_wal: refuse a file system on which there can be no write-ahead log; False: do without.
    """

    what: str
    application: int
    version: int
    tables: str
    made_by: str
    needs_wal: bool = False


def open_writer(
    path: Path, schema: Schema, verify: bool = False, fill: Callable[[sqlite3.Connection], object] | None = None
) -> sqlite3.Connection:
    """A connection that writes, for one thread at a time. What it commits is synced to the disk.

    A missing file is made, with its folder: its tables and what `fill` writes appear in one transaction.

    Args:
        verify: check the whole file (SQLite's quick_check: a second for some hundred MiB).
        fill: writes the first rows of a new file.

    Raises:
        ValueError: the file cannot be written, is damaged, or is not of this schema; says the remedy.
    """

    def prepare(connection: sqlite3.Connection) -> None:
        _use_wal(connection, path, schema)
        connection.execute("PRAGMA synchronous = FULL")
        with transaction(connection):
            if _is_new(connection):
                for statement in _statements(schema.tables):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {schema.application}")
                connection.execute(f"PRAGMA user_version = {schema.version}")
                if fill is not None:
                    fill(connection)
        _check(connection, path, schema, verify)

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(remedy(path, schema, error)) from error
    return _connect(f"file:{quote(str(path.resolve()))}", path, schema, prepare)


def open_reader(path: Path, schema: Schema, verify: bool = False) -> sqlite3.Connection:
    """A connection that only reads.

    Raises:
        ValueError: there is no such file, or it cannot be read, is damaged, or is not of this schema.
    """
    if not path.is_file():
        raise ValueError(f"there is no {schema.what} at {path}. Remedy: {schema.made_by}, or correct the path.")
    path = path.resolve()  # the -wal file lies beside the file itself, not beside a link to it
    uri = f"file:{quote(str(path))}?mode=ro"
    # SQLite reads a file in a folder that this user cannot write only if nobody else changes the file.
    uri += "" if os.access(path.parent, os.W_OK) or Path(f"{path}-wal").exists() else "&immutable=1"
    return _connect(uri, path, schema, lambda connection: _check(connection, path, schema, verify))


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All statements of the block or none. Raises sqlite3.Error when the disk refuses; then nothing has changed."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def copy_to(connection: sqlite3.Connection, path: Path) -> None:
    """Copy a database as of its last transaction into one file. A kill leaves the old file or the new one.

    To be called by one process at a time for the same path: what killed ones have left there is removed.

    Raises:
        sqlite3.Error, OSError: it cannot be written.
    """
    for rest in path.parent.glob(f".{path.name}.*.part*"):  # journals of killed copies included
        rest.unlink()
    with replacing(path) as new, closing(sqlite3.connect(new, isolation_level=None)) as copy:
        connection.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # no -wal file beside the copy


def remedy(path: Path, schema: Schema, error: Exception) -> str:
    """What is wrong with a database's file, and what to do."""
    if type(error) is sqlite3.DatabaseError:  # not one of its subclasses: malformed, or no database at all
        return (
            f"the {schema.what} {path} is damaged, or no {schema.what} ({error}). It is left as it is. Remedy: restore "
            f"a copy; or save what can be read (sqlite3 {path} .recover | sqlite3 NEW); or move it away, with its -wal "
            f"and -shm, and begin a new one."
        )
    return (
        f"the {schema.what} {path} cannot be used ({error}). Remedy: a local disk (not NFS) with room, a folder that "
        f"this user may write, no process that holds the file for more than {BUSY_S:g} s."
    )


def _connect(uri: str, path: Path, schema: Schema, prepare: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            prepare(connection)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise ValueError(remedy(path, schema, error)) from error
    return connection


def _use_wal(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    # Where two processes make the same file at once, SQLite does not wait for the other one here.
    for attempt in Retrying(
        stop=stop_after_delay(BUSY_S), wait=wait_random(0, 0.1), retry=retry_if_exception(_is_locked), reraise=True
    ):
        with attempt:
            _check_kind(connection, path, schema)
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if schema.needs_wal and mode != "wal":
        raise ValueError(f"{path}: SQLite cannot have a WAL there (it says {mode!r}). Remedy: a local disk, not NFS.")


def _check(connection: sqlite3.Connection, path: Path, schema: Schema, verify: bool) -> None:
    if _is_new(connection):
        raise ValueError(f"the {schema.what} {path} is empty. Remedy: {schema.made_by}.")
    _check_kind(connection, path, schema)
    if verify:
        found = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
        if found != ["ok"]:
            raise sqlite3.DatabaseError(" ".join("; ".join(found).split()))


def _check_kind(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    """Refuse another program's database, and one of another version."""
    if _is_new(connection):
        return
    whose, version = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
    if whose != schema.application:
        raise ValueError(f"{path} is a database of something else, no {schema.what}. Remedy: another path.")
    if version != schema.version:
        raise ValueError(
            f"the {schema.what} {path} has version {version}, this verl_ext reads version {schema.version}. Remedy: "
            "the verl_ext that wrote it, or another path."
        )


def _is_new(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0


def _is_locked(error: BaseException) -> bool:
    return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)


def _statements(script: str) -> Iterator[str]:
    """The statements of a script one by one: `executescript` would commit the transaction first."""
    statement = ""
    for line in script.strip().splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
