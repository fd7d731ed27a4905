"""The forked process of one program: sets limits and locks, then runs the program.

What the program changes in Python (builtins, modules, files, threads) ends with this process.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import linecache
import os
import resource
import socket
import sys
import threading
import traceback
import types
from dataclasses import dataclass
from typing import Any, NoReturn

from . import landlock, seccomp
from .folders import Name, erase
from .kernel import call, die_with, no_core_dumps
from .limits import OPEN_FILES, SPARE_BYTES, STACK_BYTES, Limits

NAME = "program.py"
# Messages from the process to the server, before the program starts.
LISTENER, STARTED, FAILED = b"listener", b"started", b"failed"
NOT_STARTED = 70


@dataclass(frozen=True)
class Cell:
    """Settings that all programs of a server share.

    limits: of each program.
    rights: descriptor -> Landlock rights outside of the program's folder; None: no locks (unprotected).
    kept: descriptors that stay open.
    server: pid of the server.
    """

    limits: Limits
    rights: dict[int, int] | None
    kept: list[int]
    server: int

    def live(self, streams: tuple[int, int, int], folder: Name, link: socket.socket) -> NoReturn:
        """Become the process of one program; never returns.

        Args:
            streams: descriptors of the program's text, its stdout and its stderr.
            folder: its own; the only place where it may write. Its name is erased from memory here.
            link: socket to the server; closed before the program starts.
        """
        gate = link.detach()
        try:
            os.setsid()
            die_with(self.server)
            text = _read(streams[0])
            # Not the server's stdin, whose flags all programs would share.
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(streams[1], 1)
            os.dup2(streams[2], 2)
            call("chdir", folder)
            erase(folder)
            _close_all_but([gate, *self.kept, *(self.rights or [])])
            self._limit()
            self._lock(gate)
            os.write(gate, STARTED)
            os.close(gate)
        except BaseException as error:
            os.write(gate, FAILED + f"{type(error).__name__}: {error}".encode(errors="replace")[:600])
            os._exit(NOT_STARTED)
        run(text)

    def _limit(self) -> None:
        limits, memory = self.limits, self.limits.memory_mb << 20
        for kind, soft, hard in (
            (resource.RLIMIT_CPU, limits.cpu_s, limits.cpu_s),
            (resource.RLIMIT_AS, memory, memory + SPARE_BYTES),
            (resource.RLIMIT_STACK, STACK_BYTES, memory),
            (resource.RLIMIT_FSIZE, limits.file_mb << 20, limits.file_mb << 20),
            (resource.RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES),
            (resource.RLIMIT_CORE, 0, 0),
            (resource.RLIMIT_MEMLOCK, 0, 0),
        ):
            allowed = resource.getrlimit(kind)[1]
            if allowed != resource.RLIM_INFINITY:
                soft, hard = min(soft, allowed), min(hard, allowed)
            resource.setrlimit(kind, (soft, hard))

    def _lock(self, gate: int) -> None:
        no_core_dumps()
        if self.rights is None:
            return
        own = os.open(".", os.O_PATH)
        landlock.restrict({**self.rights, own: landlock.USE})
        listener = seccomp.install(seccomp.count(), listen=True)
        with socket.socket(fileno=os.dup(gate)) as sender:
            socket.send_fds(sender, [LISTENER], [listener])
        _close_all_but([*self.kept, gate])
        seccomp.install(seccomp.allow(os.getpid()))


def run(text: bytes) -> NoReturn:
    """Run a program as `python program.py` would, and end the process."""
    end, code = os._exit, 1
    try:
        _prepare(text)
        code = _code_of(lambda: exec(compile(text, NAME, "exec", dont_inherit=True), sys.modules["__main__"].__dict__))
        # The steps of the interpreter at its end, except for its own clean-up.
        for last in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
            code = _code_of(last) or code
        for stream in (sys.stdout, sys.__stdout__, sys.stderr):
            _code_of(stream.flush)  # type: ignore[union-attr]
    finally:
        end(code)


def _prepare(text: bytes) -> None:
    gc.enable()
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __file__=NAME)
    sys.modules["__main__"] = main
    sys.argv = [NAME]
    sys.path.insert(0, os.getcwd())
    # Line buffering, so that a killed program loses no printed line.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    lines = text.decode("utf-8", "replace").splitlines(keepends=True)
    linecache.cache[NAME] = (len(text), None, lines, NAME)


def _code_of(work: Any) -> int:
    """Run `work()` and return the interpreter's exit code for it. Prints exceptions as the interpreter does."""
    try:
        work()
        return 0
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        _print(f"{error.code}\n")
    except MemoryError as error:
        resource.setrlimit(resource.RLIMIT_AS, (resource.getrlimit(resource.RLIMIT_AS)[1],) * 2)
        _print_traceback(error)
    except BaseException as error:
        _print_traceback(error)
    return 1


def _print_traceback(error: BaseException) -> None:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    try:
        _print("".join(traceback.TracebackException(type(error), error, trace).format()))
    except BaseException:  # showing the exception raises another one, or there is no memory for it
        _print(f"{type(error).__name__}\n")


def _print(text: str) -> None:
    """Print to descriptor 2, because the program may have replaced sys.stderr."""
    data = text.encode("utf-8", "backslashreplace")
    try:
        while data:
            data = data[os.write(2, data) :]
    except OSError:  # the program has closed it
        pass


def _read(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        return file.read()


def _close_all_but(kept: list[int]) -> None:
    """Close all descriptors above 2 except `kept`."""
    last = 2
    for descriptor in sorted(kept):
        os.closerange(last + 1, descriptor)
        last = descriptor
    os.closerange(last + 1, 1 << 20)
