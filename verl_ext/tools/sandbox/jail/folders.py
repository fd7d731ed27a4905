"""Removing the folders of programs."""

from __future__ import annotations

import os


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
