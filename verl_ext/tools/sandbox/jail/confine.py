"""What the server is locked with before the first program: another user, no privileges, Python's library alone."""

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
# Imported once, so that no program has to; some of them load shared libraries, which programs cannot.
PRELOADED = """
abc array ast base64 bisect bz2 calendar cmath collections contextlib copy csv dataclasses datetime decimal enum
fractions functools hashlib heapq io itertools json linecache lzma math numbers operator pprint random re secrets
sqlite3 statistics string struct tempfile textwrap threading time traceback types typing unicodedata uuid zlib zoneinfo
""".split()
# Packages of the machine are no part of the library: they may hold what is to be learned.
NOT_LIBRARY = ("site-packages", "dist-packages")
TIME_ZONES = "/usr/share/zoneinfo"


class Library:
    """Python's standard library, as folders on sys.path and as descriptors of them.

    kept: descriptors that programs need to reach it. The user whom a trainer run by root becomes cannot reach what lies
        under a locked folder, such as /root; through a descriptor he can.
    """

    def __init__(self) -> None:
        self.descriptors = {path: _descriptor(path) for path in sys.path if os.path.exists(path)}
        self.kept: list[int] = []

    def reach(self) -> None:
        """Have sys.path and packages already imported go by descriptors, where the paths are closed to this user."""
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
        """Reading everything in it; for programs, together with `rights_of_server`."""
        return {descriptor: _read(descriptor) for descriptor in self.descriptors.values()}

    def rights_of_server(self) -> dict[int, int]:
        """Reading all but the packages that are installed in it; of those the names can be listed."""
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
    """Lock this process, for good, and import PRELOADED.

    Args:
        folder: where the folders of programs will be; the working folder from now on.

    Returns:
        What programs may do: descriptor -> rights; the descriptors that they keep open.

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
    """If this is root, another user from now on, who owns `folder`.

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
    """Import PRELOADED and what `site` would have added for programs: exit and quit."""
    for name in PRELOADED:
        try:
            importlib.import_module(name)
        except ImportError:  # some Pythons are built without bz2, lzma or sqlite3
            pass
    from _sitebuiltins import Quitter

    builtins.exit, builtins.quit = Quitter("exit", "Ctrl-D"), Quitter("quit", "Ctrl-D")  # type: ignore[assignment]


def _descriptor(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _read(descriptor: int) -> int:
    """Landlock's rights to read a folder, or a file: it refuses rights to folders on files."""
    return landlock.READ if stat.S_ISDIR(os.fstat(descriptor).st_mode) else landlock.READ_FILE


def _moved(entry: str, path: str, shown: str) -> str:
    return shown + entry[len(path) :] if entry == path or entry.startswith(path + os.sep) else entry
