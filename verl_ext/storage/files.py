"""Files that appear whole or not at all, their hashes, and folders in which one process works at a time."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

LOCK = ".lock"


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """The path of a new file beside `path`, which takes the place of `path` when the block ends.

    The folder is made if it does not exist. The content is synced to the disk before the rename, so that a kill or a
    power failure leaves the old file or the new one. If the block raises, the new file is removed. A process that is
    killed inside the block leaves `.NAME.RANDOM.part` behind.

        with replacing("data/train.parquet") as new:
            pq.write_table(table, new)
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Threads, and processes on several machines, may write the same file at once: each one has a new file of its own.
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        yield new
        with open(new, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


@contextmanager
def writing(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """An open file whose content takes the place of `path` when the block ends; see `replacing`.

    mode: "w" for UTF-8 text, "wb" for bytes.
    """
    encoding = None if "b" in mode else "utf-8"
    with replacing(path) as new, open(new, mode, encoding=encoding) as file:
        yield file


def write_file(path: str | Path, content: str | bytes) -> None:
    """Write `path` whole or not at all; see `replacing`. Text is written as UTF-8."""
    with writing(path, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def file_sha256(path: Path) -> str:
    """Hash of a file's content, hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def lock_folder(folder: str | Path) -> IO[str] | None:
    """Lock a folder for this process; the lock is released when the returned file is closed or the process ends.

    Returns:
        The open lock file, or None if another process holds the lock.

    Raises:
        OSError: the lock file cannot be opened, or the file system of the folder has no locks.
    """
    lock = open(Path(folder) / LOCK, "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return None
        raise OSError(
            error.errno,
            f"{error.strerror}: the file system of {folder} cannot lock files. Remedy: a folder on another file "
            "system, or mount this one with locks (NFS: version 4 or a lock daemon; Lustre: -o flock)",
        ) from error
    return lock
