"""The user's part of a traceback: the lines of a workflow, a prompt, a tool, …, without those that only lead there."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import itertools
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException
from typing import Any

# Packages that call the user's code. verl_ext itself is one of them, but for the systems in it.
CALLERS = ("asyncio", "concurrent", "hydra", "omegaconf", "ray", "transfer_queue", "verl")
# Packages in which errors begin that no code of the user's has caused, e.g. while a model is loaded, or where no server
# answers.
LIBRARIES = ("aiohappyeyeballs", "aiohttp", "anyio", "datasets", "httpcore", "httpcore2", "httpx", "httpx2",
             "huggingface_hub", "openai", "peft", "pydantic", "tensordict", "torch", "transformers", "vllm",
             "yarl")  # fmt: skip
# The attribute of an error that has been sent to another process, without its frames.
KEPT = "users_traceback"
STANDARD = Path(sysconfig.get_paths()["stdlib"])
PACKAGE = Path(__file__).parent
SYSTEMS = PACKAGE / "recipe"


def users_traceback(error: BaseException) -> str:
    """The traceback of `error` and of what caused it, without the frames of verl_ext, verl, Ray, Hydra and asyncio.

    It begins with the user's first frame. Errors of the chain without one are left out; "" if none has any: the user's
    code is not the reason.
    """
    if (kept := getattr(error, KEPT, None)) is not None:
        return str(kept)
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


@contextmanager
def kept_traceback() -> Iterator[None]:
    """Let an error of this block have the same `users_traceback` in the process to which it is sent."""
    try:
        yield
    except Exception as error:
        vars(error)[KEPT] = users_traceback(error)
        raise


def frames_of(trace: str) -> tuple[str, ...]:
    """File, line and function of each frame of a formatted traceback: equal for two errors of the same place."""
    return tuple(line for line in trace.splitlines() if line.startswith('  File "'))


def users_frames(stack: StackSummary) -> StackSummary:
    """A stack from the user's first frame on, without frames of callers; empty if there is none of the user's."""
    frames = itertools.dropwhile(lambda frame: not _of_user(frame), stack)
    return StackSummary.from_list([frame for frame in frames if not _in(frame, CALLERS)])


def place_of(function: Callable[..., Any]) -> str:
    """Name, file and line of a function of the user's: `ask (/home/me/capitals.py:21)`."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def explained(error: BaseException) -> str:
    """The error's message; if it comes from the user's code, a second paragraph with the lines that raised it."""
    trace = users_traceback(error)
    return f"{error}\n\n{trace}" if trace else str(error)


def _cause(found: TracebackException) -> TracebackException | None:
    """What an error was raised from, or while it was handled; the first error of a group."""
    if group := getattr(found, "exceptions", None):  # from Python 3.11
        return group[0]
    return found.__cause__ or (None if found.__suppress_context__ else found.__context__)


def _reduce(found: TracebackException) -> bool:
    """Drop the frames before the user's first one, and those of callers; whether there is one, or wrong syntax."""
    found.stack = users_frames(found.stack)
    return bool(found.stack) or getattr(found, "filename", None) is not None


def _of_user(frame: FrameSummary) -> bool:
    file = Path(frame.filename)
    standard = file.is_relative_to(STANDARD) and "site-packages" not in file.parts
    made = frame.filename.startswith("<")  # e.g. the __init__ of a dataclass
    return not standard and not made and not _in(frame, (*CALLERS, *LIBRARIES))


def _in(frame: FrameSummary, packages: tuple[str, ...]) -> bool:
    """Whether a frame is in one of these packages, or in verl_ext outside of its systems."""
    file = Path(frame.filename)
    if file.is_relative_to(PACKAGE) and not file.is_relative_to(SYSTEMS):
        return True
    return frame.filename.startswith("<frozen") or any(file.is_relative_to(root) for root in _folders(packages))


@functools.cache
def _folders(packages: tuple[str, ...]) -> tuple[Path, ...]:
    specs = [importlib.util.find_spec(name) for name in packages]
    return tuple(Path(place) for spec in specs if spec for place in spec.submodule_search_locations or ())
