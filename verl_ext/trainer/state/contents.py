"""What a run or an evaluation reads besides its settings: the files of the user's own system, and data."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

# Bytes of a file that are read, besides its size.
READ = 64 << 20
# In a virtual environment in the system's own folder.
INSTALLED = "site-packages"


def own_files(system: type[Any]) -> dict[str, str]:
    """Name -> fingerprint of the file of a workflow of the user's, and of those beside it from which it imports.

    Nothing for the systems of this library.
    """
    module = sys.modules.get(system.__module__)
    if module is None or _ours(module) or not (own := _file(module)):
        return {}
    modules = [one if isinstance(one, ModuleType) else sys.modules.get(_home(one)) for one in vars(module).values()]
    files = {_file(one) for one in modules if one is not None and not _ours(one)} | {own}
    beside = [path for path in files if path and path.is_relative_to(own.parent)]
    return fingerprints(
        sorted(path for path in beside if INSTALLED not in path.relative_to(own.parent).parts), own.parent
    )


def fingerprints(paths: Iterable[Path], root: Path = Path()) -> dict[str, str]:
    """Path below `root` -> fingerprint of what is in a file; files that cannot be read are left out."""
    found = {}
    for path in paths:
        try:
            with open(path, "rb") as file:
                digest = hashlib.sha256(file.read(READ) + str(path.stat().st_size).encode())
        except OSError:
            continue
        found[str(path.relative_to(root) if path.is_relative_to(root) else path)] = digest.hexdigest()[:16]
    return found


def _ours(module: ModuleType) -> bool:
    return module.__name__.partition(".")[0] == "verl_ext"


def _file(module: ModuleType) -> Path | None:
    try:
        return Path(inspect.getsourcefile(module) or "").resolve()
    except TypeError:  # built in
        return None


def _home(value: Any) -> str:
    home = getattr(value, "__module__", None)
    return home if isinstance(home, str) else ""
