"""The user's part of a traceback: the lines of a workflow, a prompt, a tool, …, without those that only lead there."""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException
from typing import Any

# Packages that call the user's code. verl_ext itself is one of them, but for the systems in it.
CALLERS = ("asyncio", "concurrent", "hydra", "omegaconf", "ray", "transfer_queue", "verl")
PACKAGE = Path(__file__).parent
SYSTEMS = PACKAGE / "recipe"


def users_traceback(error: BaseException) -> str:
    """The traceback of `error` and of what caused it, without the frames of verl_ext, verl, Ray, Hydra and asyncio.

    Errors of the chain that have no other frame are left out. "" if none has: the user's code did not raise it.
    """
    found = TracebackException.from_exception(error)
    while not _reduce(found):
        inner = _cause(found)
        if inner is None:
            return ""
        found = inner
    last: TracebackException | None = found
    while last is not None:
        inner = _cause(last)
        if inner is None or not _reduce(inner):
            last.__cause__ = last.__context__ = None
            inner = None
        last = inner
    return "".join(found.format()).rstrip()


def frames_of(trace: str) -> tuple[str, ...]:
    """File, line and function of each frame of a formatted traceback: equal for two errors of the same place."""
    return tuple(line for line in trace.splitlines() if line.startswith('  File "'))


def place_of(function: Callable[..., Any]) -> str:
    """Name, file and line of a function of the user's: `ask (/home/me/capitals.py:21)`."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def _cause(found: TracebackException) -> TracebackException | None:
    """What an error was raised from, or while it was handled; the first error of a group."""
    if found.exceptions:
        return found.exceptions[0]
    return found.__cause__ or (None if found.__suppress_context__ else found.__context__)


def _reduce(found: TracebackException) -> bool:
    """Drop the frames that are not the user's; whether one remains, or the error is in the user's syntax."""
    found.stack = StackSummary.from_list([frame for frame in found.stack if _of_user(frame)])
    return bool(found.stack) or getattr(found, "filename", None) is not None


def _of_user(frame: FrameSummary) -> bool:
    file = Path(frame.filename)
    if frame.filename.startswith("<frozen") or any(file.is_relative_to(root) for root in _callers()):
        return False
    return not file.is_relative_to(PACKAGE) or file.is_relative_to(SYSTEMS)


@functools.cache
def _callers() -> tuple[Path, ...]:
    """The folders of `CALLERS`."""
    specs = [importlib.util.find_spec(name) for name in CALLERS]
    return tuple(Path(place) for spec in specs if spec for place in spec.submodule_search_locations or ())
