"""The trainer's side of a fork server: starts it, sends it programs, reads their output.

Nothing here blocks: the event loop is notified of output and of the end of programs. If a server dies or no longer
answers, the whole server is given up (`ServerLost`), and its programs die with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from verl_ext.tools.sandbox.jail.folders import remove
from verl_ext.tools.sandbox.jail.limits import Limits
from verl_ext.tools.sandbox.jail.server import KILLED, MESSAGE_BYTES, PATIENCE, Ended
from verl_ext.tools.sandbox.running import Run
from verl_ext.tools.threads import in_thread

START_S, STOP_S = 30.0, 5.0
# A server that has not killed a program so many seconds after its time limit is broken.
GRACE_S = 10.0
# Without site-packages. The folder of jail goes last, so that its modules do not shadow the library.
COMMAND = """
import sys
sys.path = [path for path in sys.path if path] + [{!r}]
from jail import server
sys.path.pop()
server.main()
"""


class ServerLost(Exception):
    """The server died or hung. The outcome of its programs is unknown; they may be run again on another server."""


class NoSandbox(Exception):
    """This machine cannot run the sandbox; the message has the reason and the remedy."""


class ForkServer:
    """A running server of one event loop; `start` creates it.

    Args:
        process, connection: the server's process and the socket to it.
        folder: contains the folders of its programs.
        wall_s: time limit after which it must have killed a program.
    """

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket, folder: str, wall_s: float):
        self.process, self.folder, self.wall_s = process, folder, wall_s
        self.alive = True
        self._connection, self._loop = connection, asyncio.get_running_loop()
        self._runs: dict[int, Run] = {}
        self._number = 0
        self._cleaner: threading.Thread | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(connection.fileno(), self._receive)

    @classmethod
    async def start(cls, limits: Limits, protected: bool = True) -> ForkServer:
        """Start a server.

        Raises:
            NoSandbox: this machine lacks a protection.
            ServerLost: it did not start.
        """
        if sys.platform != "linux":
            raise NoSandbox(f"the sandbox needs Linux; this is {sys.platform}. Remedy: run it in a Linux container")
        try:
            folder = tempfile.mkdtemp(prefix="run_python-")
        except OSError as error:
            raise NoSandbox(f"the folder for programs' files cannot be made ({error}). Remedy: set TMPDIR") from error
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        settings = {"socket": theirs.fileno(), "folder": folder, "trainer": os.getpid(), "protected": protected}
        try:
            process = _launch(json.dumps(settings | {"limits": asdict(limits)}), theirs.fileno())
        except OSError as error:
            ours.close()
            remove(folder)
            raise ServerLost(f"the sandbox's server cannot be started ({error})") from error
        finally:
            theirs.close()
        server = cls(process, ours, folder, limits.wall_s)
        try:
            await asyncio.wait_for(server._ready, START_S)
        except asyncio.TimeoutError as error:  # noqa: UP041 (in Python 3.10 not yet the same as TimeoutError)
            await server.close()
            raise ServerLost(f"the sandbox's server did not start within {START_S:g} s") from error
        except NoSandbox:
            await server.close()
            raise
        except BaseException:
            server.kill()
            raise
        return server

    def run(self, text: bytes, keep: int) -> Run:
        """Start a program.

        Args:
            text: its source.
            keep: bytes to keep of the beginning and of the end of each stream.

        Raises:
            ServerLost: the server has died.
            OSError: this process has too many open files.
        """
        self._number += 1
        run = Run(self._number, keep, self.end)
        given: list[int] = []
        try:
            given.append(os.memfd_create("program"))
            with open(given[0], "wb", closefd=False) as file:
                file.write(text)
            os.lseek(given[0], 0, os.SEEK_SET)
            for stream in (run.stdout, run.stderr):
                ours, theirs = os.pipe()
                given.append(theirs)
                run.listen(ours, stream)
            socket.send_fds(self._connection, [json.dumps({"run": run.number}).encode()], given)
        except OSError as error:
            run.close(drain=False)
            if isinstance(error, ConnectionError):
                self.kill()
                raise ServerLost(f"the sandbox's server has ended ({error})") from error
            raise
        finally:
            for descriptor in given:
                os.close(descriptor)
        self._runs[run.number] = run
        late = self._loop.call_later(PATIENCE * self.wall_s + GRACE_S, self.kill)
        run.done.add_done_callback(lambda _: late.cancel())
        return run

    def end(self, run: Run) -> None:
        """Ask the server to kill a program; does not wait for it."""
        self._send({"kill": run.number})

    def kill(self) -> None:
        """Kill the server and its programs at once. Callers waiting for these get `ServerLost`."""
        if not self.alive:
            return
        self.alive = False
        if not self._loop.is_closed():
            self._loop.remove_reader(self._connection.fileno())
        self._connection.close()
        self.process.kill()  # the kernel then kills its programs
        self._cleaner = threading.Thread(target=self._clean_up, daemon=True, name="run_python")
        self._cleaner.start()
        lost = ServerLost(f"the sandbox's server has ended{self._error_output()}")
        for run in self._runs.values():
            run.close(drain=False)
        waiting: list[asyncio.Future[Any]] = [self._ready, *(run.done for run in self._runs.values())]
        for waited in waiting:
            if not waited.done() and not self._loop.is_closed():
                waited.set_exception(lost)
                waited.exception()  # marks it as retrieved, if nobody waits

    async def close(self) -> None:
        """End the programs and the server; in good order if the server still answers."""
        if self.alive:
            self._send({"stop": True})
            await in_thread(lambda: self._wait(STOP_S))
            self.kill()
        if (cleaner := self._cleaner) is not None:
            await in_thread(lambda: cleaner.join(2 * STOP_S))

    def _wait(self, seconds: float) -> None:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass

    def _clean_up(self) -> None:
        """Wait for the server, in a thread, and remove its folder. Its programs may end a moment later than it."""
        self._wait(STOP_S)
        until = time.monotonic() + STOP_S
        remove(self.folder)
        while os.path.exists(self.folder) and time.monotonic() < until:
            time.sleep(0.01)
            remove(self.folder)

    def _send(self, order: dict[str, Any]) -> None:
        try:
            self._connection.send(json.dumps(order).encode())
        except OSError:  # it is dead, which _receive will notice
            pass

    def _receive(self) -> None:
        try:
            message = self._connection.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self.kill()
            return
        answer = json.loads(message)
        if "unavailable" in answer:
            self._ready.set_exception(NoSandbox(answer["unavailable"]))
        elif "ready" in answer:
            self._ready.set_result(None)
        else:
            self._ended(Ended(**answer))

    def _ended(self, ended: Ended) -> None:
        run = self._runs.pop(ended.ended)
        run.close(drain=True)
        if run.done.done():  # cancelled
            return
        if ended.failed:
            run.done.set_exception(NoSandbox(ended.failed))
        elif ended.reason == KILLED and not run.flooded:  # the server is being stopped
            run.done.set_exception(ServerLost("the sandbox's server was stopped"))
        else:
            run.done.set_result(ended)

    def _error_output(self) -> str:
        """The end of a dead server's stderr, usually of a traceback."""
        assert self.process.stderr is not None
        os.set_blocking(self.process.stderr.fileno(), False)
        text = (self.process.stderr.read() or b"").decode(errors="replace").strip()
        self.process.stderr.close()
        return f": {text[-500:]}" if text else ""


def _launch(settings: str, connection: int) -> subprocess.Popen[bytes]:
    """Start the server's process, which inherits only `connection` and `settings`."""
    python = [sys.executable, "-s", "-S", "-B", "-X", "utf8", "-c", COMMAND.format(str(Path(__file__).parent))]
    # Fixed hash seed and time zone: a program prints the same on every machine.
    return subprocess.Popen(
        [*python, settings],
        env={"PYTHONHASHSEED": "0", "TZ": "UTC", "MALLOC_ARENA_MAX": "1"},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=[connection],
        start_new_session=True,
    )
