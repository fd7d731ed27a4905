"""The locks of the server before the first program: another user, no privileges, only Python's library."""

from __future__ import annotations

import builtins
import importlib
import os
import stat
import sys
from pathlib import Path

from . import landlock
from .kernel import Unavailable, drop_capabilities, no_new_privileges

NOBODY = 65534
# Imported once by the server to save time, and because programs cannot load shared libraries.
PRELOADED = """
abc array ast base64 bisect bz2 calendar cmath collections contextlib copy csv dataclasses datetime decimal enum
fractions functools hashlib heapq io itertools json linecache lzma math numbers operator pprint random re secrets
sqlite3 statistics string struct tempfile textwrap threading time traceback types typing unicodedata uuid zlib zoneinfo
""".split()
# Installed packages are not part of the library: they may contain the answers to training tasks.
NOT_LIBRARY = ("site-packages", "dist-packages")
TIME_ZONES = "/usr/share/zoneinfo"


class Library:
    """Python's standard library: the entries of sys.path, and their descriptors.

    kept: descriptors through which programs reach the library. If root trains, programs run as another user, who
        cannot enter folders such as /root by path, but can through a descriptor.
    """

    def __init__(self) -> None:
        self.descriptors = {path: _descriptor(path) for path in sys.path if os.path.exists(path)}
        self.kept: list[int] = []

    def reach(self) -> None:
        """Make sys.path and imported packages use descriptors where this user cannot enter the paths."""
        for path, descriptor in self.descriptors.items():
            if os.access(path, os.R_OK | os.X_OK):
                continue
            self.kept.append(descriptor)
            shown = f"/proc/self/fd/{descriptor}"
            if not os.access(shown, os.R_OK):
                raise Unavailable(
                    f"user {os.geteuid()}, as whom programs run, cannot read Python's library {path}. Remedy: "
                    f"mount /proc, or let others search its folders (chmod o+x)"
                )
            sys.path = [shown if entry == path else entry for entry in sys.path]
            for module in list(sys.modules.values()):
                if getattr(module, "__path__", None):
                    module.__path__ = [_moved(entry, path, shown) for entry in module.__path__]
        sys.path_importer_cache.clear()

    def rights(self) -> dict[int, int]:
        """Rights to read the library. Programs also have the narrower `rights_of_server`."""
        return {descriptor: _read(descriptor) for descriptor in self.descriptors.values()}

    def rights_of_server(self) -> dict[int, int]:
        """Rights to read the library except installed packages, whose names can be listed."""
        rights = {}
        for path, descriptor in self.descriptors.items():
            if not os.path.isdir(path):
                rights[descriptor] = landlock.READ_FILE
                continue
            rights[descriptor] = landlock.READ_DIR
            names = [name for name in os.listdir(path) if name not in NOT_LIBRARY]
            inside = [_descriptor(os.path.join(path, name)) for name in names]
            rights |= {entry: _read(entry) for entry in inside}
        return rights


def lock_server(folder: str) -> tuple[dict[int, int], list[int]]:
    """Lock this process permanently, and import PRELOADED.

    Args:
        folder: will contain the folders of programs; becomes the working folder.

    Returns:
        The rights of programs, descriptor -> rights, and the descriptors that they keep open.

    Raises:
        Unavailable: a protection is missing.
    """
    library = Library()
    shared = {_descriptor("/dev/null"): landlock.READ_FILE | landlock.WRITE_FILE}
    if os.path.isdir(TIME_ZONES):
        shared[_descriptor(TIME_ZONES)] = landlock.READ
    own = {_descriptor(folder): landlock.USE, _descriptor(str(Path(folder).parent)): landlock.REMOVE_DIR}
    of_library = library.rights_of_server()
    os.chdir(folder)
    become_nobody(folder)
    library.reach()
    preload()
    no_new_privileges()
    drop_capabilities()
    landlock.restrict({**of_library, **shared, **own})
    for descriptor in {*of_library, *own} - set(library.descriptors.values()):
        os.close(descriptor)
    return {**library.rights(), **shared}, library.kept


def become_nobody(folder: str) -> None:
    """Change from root to NOBODY, who then owns `folder`. Does nothing for other users.

    Raises:
        Unavailable: root may not do that here.
    """
    if os.geteuid() != 0:
        return
    try:
        os.chown(folder, NOBODY, NOBODY)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError as error:
        raise Unavailable(
            f"root cannot become user {NOBODY} here ({error}), as whom programs run. Remedy: start the container with "
            "the capabilities CHOWN, SETUID and SETGID (Docker's default), or as an ordinary user"
        ) from error


def preload() -> None:
    """Import PRELOADED, and add exit and quit, which `site` would have added."""
    for name in PRELOADED:
        try:
            importlib.import_module(name)
        except ImportError:  # some Pythons are built without bz2, lzma or sqlite3
            pass
    from _sitebuiltins import Quitter

    builtins.exit, builtins.quit = Quitter("exit", "Ctrl-D"), Quitter("quit", "Ctrl-D")


def _descriptor(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _read(descriptor: int) -> int:
    """Landlock's rights to read a folder or a file; it refuses folder rights on files."""
    return landlock.READ if stat.S_ISDIR(os.fstat(descriptor).st_mode) else landlock.READ_FILE


def _moved(entry: str, path: str, shown: str) -> str:
    return shown + entry[len(path) :] if entry == path or entry.startswith(path + os.sep) else entry
