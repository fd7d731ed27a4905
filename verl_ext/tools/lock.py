"""Only one process at a time works in a folder."""

import fcntl
from pathlib import Path
from typing import IO

LOCK = ".lock"


def hold(folder: Path) -> IO[str] | None:
    """The lock of `folder`, held until it is closed or the process ends, however that ends.

    None: another process holds it.
    """
    lock = open(folder / LOCK, "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock
