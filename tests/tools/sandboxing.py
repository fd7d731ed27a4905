"""A sandbox for tests: runs real programs, and checks that they leave nothing behind.

Time limits are long where a test does not reach them: a loaded machine must not change an outcome.
"""

from __future__ import annotations

import asyncio
import os
import textwrap
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from verl_ext.tools.sandbox import run_python
from verl_ext.tools.sandbox.forkserver import ForkServer

HONEST = "print(6 * 7)"
SLEEPS = "import time\nprint('begun', flush=True)\ntime.sleep(60)"


class Sandbox:
    """One `run_python` with an event loop of its own. After each program nothing may be left of it."""

    def __init__(self, **settings: Any):
        self.loop = asyncio.new_event_loop()
        self.tool = run_python(**settings)

    def __call__(self, program: str) -> str:
        """The answer to the model; an honest program after it must still give its right answer."""
        return self.together([program])[0]

    def together(self, programs: Iterable[str]) -> list[str]:
        """The answers to programs that run at the same time. Afterwards nothing may be left of them, as in a call."""

        async def all_of_them() -> list[str]:
            return await asyncio.gather(*(self.tool(program=textwrap.dedent(program)) for program in programs))

        answers = self.loop.run_until_complete(all_of_them())
        assert self.run(HONEST) == "42"
        assert left_behind(self.server) == ([], [])
        return answers

    def run(self, program: str) -> str:
        """The answer to the model."""
        return self.loop.run_until_complete(self.tool(program=textwrap.dedent(program)))

    @property
    def server(self) -> ForkServer:
        """The fork server, after a first program."""
        assert self.tool._pool is not None and self.tool._pool._server is not None
        return self.tool._pool._server

    def counted(self) -> dict[str, int]:
        """The counts, without zeros."""
        return {name: number for name, number in self.tool.counts().items() if number}


@contextmanager
def sandbox(**settings: Any) -> Iterator[Sandbox]:
    """A Sandbox, closed at the end; then neither its server nor its folder is left."""
    room = Sandbox(**settings)
    try:
        yield room
        server = room.tool._pool._server if room.tool._pool else None
    finally:
        room.loop.run_until_complete(room.tool.close())
        room.loop.close()
    if server is not None:
        assert processes_of(server.folder) == [] and not os.path.exists(server.folder)


def processes_of(folder: str) -> list[int]:
    """Pids of the server and of all that descends from it, daemons too: forks keep the server's command line."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and folder.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:  # it has ended meanwhile
            pass
    return found


def left_behind(server: ForkServer) -> tuple[list[int], list[str]]:
    """(processes beside the server, folders of programs)."""
    return [pid for pid in processes_of(server.folder) if pid != server.process.pid], os.listdir(server.folder)


async def running(room: Sandbox, programs: int = 1) -> list[int]:
    """Wait until so many programs run; their pids."""
    while len(found := left_behind(room.server)[0]) < programs:
        await asyncio.sleep(0.01)
    return found


def gone(pid: int, within_s: float = 30.0) -> bool:
    """Whether the process has ended; waits for that."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False
