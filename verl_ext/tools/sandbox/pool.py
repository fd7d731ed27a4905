"""Runs a limited number of programs at a time, in a fork server that is started when needed and replaced when lost."""

from __future__ import annotations

import asyncio

from verl_ext.tools.sandbox.forkserver import ForkServer, NoSandbox, ServerLost
from verl_ext.tools.sandbox.jail.limits import Limits
from verl_ext.tools.sandbox.jail.server import Ended
from verl_ext.tools.sandbox.running import Run

ATTEMPTS = 2
# Attempts that every sandbox must refuse. Each new server runs them once, in case a lock has no effect.
PROBE = b"""
import os, signal, socket
def refused(attempt, *arguments):
    try:
        attempt(*arguments)
    except OSError:
        return True
for name, attempt in {
    "files": lambda: os.listdir("/"), "other folders": lambda: os.listdir(".."), "sockets": socket.socket,
    "processes": os.fork, "signals": lambda: os.kill(os.getppid(), 0), "modes": lambda: os.chmod(".", 0o700),
}.items():
    if not refused(attempt):
        print(name, end=" ")
"""


class Pool:
    """Runs the programs of one event loop.

    Args:
        limits: of each program.
        workers: programs at a time.
        protected: apply the locks.

    restarts: number of servers that were lost and replaced.
    """

    def __init__(self, limits: Limits, workers: int, protected: bool):
        self.limits, self.protected, self.restarts = limits, protected, 0
        self.loop = asyncio.get_running_loop()
        self._free, self._starting = asyncio.Semaphore(workers), asyncio.Lock()
        self._server: ForkServer | None = None
        self._closed = False

    async def run(self, text: bytes, keep: int) -> tuple[Run, Ended]:
        """Run a program as soon as a worker is free. Cancelling kills the program.

        Args:
            text, keep: see `ForkServer.run`.

        Raises:
            NoSandbox: this machine lacks a protection.
            ServerLost: the server died or hung, and so did its replacement.
        """
        await self._free.acquire()
        runs: list[Run] = []
        try:
            for attempt in range(ATTEMPTS):
                try:
                    server = await self._running()
                    runs.append(server.run(text, keep))
                    return runs[-1], await asyncio.shield(runs[-1].done)
                except ServerLost:  # programs change only their own folder, so they can run again
                    if attempt + 1 == ATTEMPTS or self._closed:
                        raise
        except asyncio.CancelledError:
            if runs:
                server.end(runs[-1])
            raise
        finally:
            if runs:  # a worker is free only when the process has ended
                runs[-1].done.add_done_callback(lambda _: self._free.release())
            else:
                self._free.release()
        raise AssertionError("unreachable")

    async def start(self) -> None:
        """Start a server, and check its locks.

        Raises:
            NoSandbox: this machine lacks a protection.
            ServerLost: the server did not come up.
        """
        await self._running()

    async def close(self) -> None:
        """End all programs and the server."""
        self._closed = True
        async with self._starting:
            if self._server is not None:
                await self._server.close()

    def abandon(self) -> None:
        """As `close`, for a pool whose event loop has ended."""
        if self._server is not None:
            self._server.kill()

    async def _running(self) -> ForkServer:
        async with self._starting:
            if self._closed:
                raise ServerLost("run_python was closed")
            if self._server is None or not self._server.alive:
                self.restarts += self._server is not None
                server = await ForkServer.start(self.limits, self.protected)
                if self.protected:
                    await _probe(server)
                self._server = server
            return self._server


async def _probe(server: ForkServer) -> None:
    try:
        run = server.run(PROBE, keep=1000)
        ended = await run.done
    except BaseException:
        await server.close()
        raise
    succeeded = bytes(run.stdout.head + run.stderr.head).decode(errors="replace").strip()
    if succeeded or ended.code or ended.reason:
        await server.close()
        raise NoSandbox(f"the sandbox does not hold on this machine: {succeeded or ended}")
