"""The folders of programs: names that no other program can know, and removal."""

from __future__ import annotations

import ctypes
import os
import secrets
from typing import TypeAlias

from .kernel import call

AT_FDCWD = -100
# Not a str: of that, copies stay in memory, which programs inherit and can search.
Name: TypeAlias = "ctypes.Array[ctypes.c_char]"


def make() -> Name:
    """Make a folder in the working folder, and return its random name, which `erase` can remove from memory."""
    name = ctypes.create_string_buffer(17)
    for place in range(16):
        name[place] = bytes([secrets.choice(b"0123456789abcdef")])
    call("mkdirat", AT_FDCWD, name, 0o700)
    return name


def erase(name: Name) -> None:
    """Overwrite a name in this process's memory."""
    ctypes.memset(name, 0, len(name))


def remove(folder: str) -> None:
    """Remove a folder and its content, including folders without permissions and paths longer than the kernel allows.

    Follows no links. No process may still write to it. Leaves what cannot be removed.
    """
    try:
        _remove(folder, None)
    except (OSError, RecursionError):
        pass


def _remove(name: str, parent: int | None) -> None:
    """Remove the folder `name` of the open folder `parent`."""
    try:
        os.rmdir(name, dir_fd=parent)  # most programs write nothing
        return
    except FileNotFoundError:
        return
    except OSError:
        os.chmod(name, 0o700, dir_fd=parent)
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        with os.scandir(folder) as entries:
            for entry in list(entries):
                if entry.is_dir(follow_symlinks=False):
                    _remove(entry.name, folder)
                else:
                    os.unlink(entry.name, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=parent)
