"""The server: receives programs from the trainer, forks a process for each, and kills it at its limits.

It never sees a program's text or output: the trainer passes descriptors, and only the forked process reads and writes
them. One thread, one loop over descriptors; messages are JSON, one per packet of a Unix socket:

    {"run": 7} with three descriptors (text, stdout, stderr), {"kill": 7}, {"stop": true}      from the trainer
    {"ready": true} or {"unavailable": "why"}, then per program one `Ended`                    to it
"""

from __future__ import annotations

import gc
import json
import math
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from . import seccomp
from .confine import lock_server, preload
from .folders import Name, erase, make, remove
from .kernel import Unavailable
from .limits import Limits
from .program import FAILED, LISTENER, STARTED, Cell
from .syscalls import NUMBERS

MESSAGE_BYTES = 4096
# Reasons for which the server kills a program.
WALL, THREADS, FILES, KILLED = "wall", "threads", "files", "killed"
# A program that has used a tenth of its processor time by its time limit is busy, and the machine is loaded. It gets so
# many times the limit, so that processor time decides, whose measure does not depend on the load.
BUSY, PATIENCE = 0.1, 3


@dataclass(frozen=True)
class Ended:
    """How a program ended.

    ended: its number.
    code: its exit code; negative: the signal that ended it.
    reason: why the server killed it; "" if it did not.
    cpu_s: processor time in seconds.
    failed: why it could not start; "" if it did.
    """

    ended: int
    code: int = 0
    reason: str = ""
    cpu_s: float = 0.0
    failed: str = ""


@dataclass
class Program:
    """A running program: its process, its sockets, its time limits, and how many threads and files it has used."""

    number: int
    pid: int
    folder: Name
    deadline: float
    late: float
    link: socket.socket
    reason: str = ""
    failed: str = "it ended before it began"
    silent: bool = False
    descriptors: list[int] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=lambda: {THREADS: 0, FILES: 0})


class Server:
    """Runs programs until the trainer sends a stop, closes its socket or ends.

    Args:
        trainer: the socket to the trainer.
        cell: settings of the programs.
    """

    def __init__(self, trainer: socket.socket, cell: Cell):
        self.trainer, self.cell = trainer, cell
        self.budget = {THREADS: cell.limits.threads, FILES: cell.limits.files}
        self.programs: dict[int, Program] = {}
        self.stopped = False
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[bool], None]] = {}
        self.watch(trainer.fileno(), self._receive_order)

    def serve(self) -> None:
        """Serve until stopped. Afterwards no program and no folder of one is left."""
        while not self.stopped:
            soonest = min((program.deadline for program in self.programs.values()), default=math.inf)
            wait = None if soonest == math.inf else max(0.0, soonest - time.monotonic()) * 1000 + 1
            for descriptor, events in self._poll.poll(wait):
                if descriptor in self._handlers:
                    self._handlers[descriptor](bool(events & select.POLLIN))
            for program in self.programs.values():
                if program.deadline < time.monotonic():
                    self._end_or_wait(program)
        for program in list(self.programs.values()):
            self._kill(program, KILLED)
            self._reap(program)

    def watch(self, descriptor: int, handler: Callable[[bool], None]) -> None:
        """Call `handler` on events of `descriptor`, with whether there is something to read."""
        self._handlers[descriptor] = handler
        self._poll.register(descriptor, select.POLLIN)

    def stop(self, _: bool = True) -> None:
        """Make `serve` return."""
        self.stopped = True

    def _receive_order(self, _: bool) -> None:
        """Receive an order of the trainer."""
        message, descriptors, _, _ = socket.recv_fds(self.trainer, MESSAGE_BYTES, 3)
        order: dict[str, Any] = json.loads(message) if message else {"stop": True}
        if "run" in order:
            self._start(order["run"], descriptors)
        elif "kill" in order:
            for program in [p for p in self.programs.values() if p.number == order["kill"]]:
                self._kill(program, KILLED)
        else:
            self.stop()
        for descriptor in descriptors:
            os.close(descriptor)

    def _start(self, number: int, streams: list[int]) -> None:
        folder = make()
        link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
        except OSError as error:
            self._send(Ended(number, failed=f"no process can be started ({error})"))
            link.close()
            theirs.close()
            remove(folder.value.decode())
            return
        if pid == 0:
            self._forget_programs()
            self.cell.live((streams[0], streams[1], streams[2]), folder, theirs)
        theirs.close()
        now, wall_s = time.monotonic(), self.cell.limits.wall_s
        program = Program(number, pid, folder, now + wall_s, now + PATIENCE * wall_s, link)
        self.programs[pid] = program
        program.descriptors += [link.fileno(), os.pidfd_open(pid)]
        self.watch(program.descriptors[0], lambda _: self._receive(program))
        self.watch(program.descriptors[1], lambda _: self._reap(program))

    def _receive(self, program: Program) -> None:
        """Receive a message of the process, which sends them before the program starts."""
        message, descriptors, _, _ = socket.recv_fds(program.link, MESSAGE_BYTES, 1)
        if message == LISTENER:
            listener = descriptors[0]
            program.descriptors.append(listener)
            self.watch(listener, lambda waiting: self._count(program, listener) if waiting else None)
        elif message == STARTED:
            program.failed = ""
        elif message.startswith(FAILED):
            program.failed = message.removeprefix(FAILED).decode(errors="replace")
        else:
            self._forget(program.link.fileno())
            program.silent = True

    def _count(self, program: Program, listener: int) -> None:
        """Count a thread or file that the program is about to make; allow it, or kill the program."""
        asked = seccomp.question(listener)
        if asked is None:
            return
        identity, number = asked
        kind = THREADS if number == NUMBERS["clone"] else FILES
        program.used[kind] += 1
        if program.used[kind] > self.budget[kind]:
            self._kill(program, kind)
        else:
            seccomp.allow_call(listener, identity)

    def _forget_programs(self) -> None:
        """In a forked process: forget the other programs, and with them where their folders are."""
        for program in self.programs.values():
            erase(program.folder)
        self.programs.clear()
        self._handlers.clear()

    def _end_or_wait(self, program: Program) -> None:
        """The program has reached its time limit: kill it, unless it has been busy; then once give it more."""
        if program.deadline < program.late and _cpu_s(program.pid) >= BUSY * self.cell.limits.cpu_s:
            program.deadline = program.late
        else:
            self._kill(program, WALL)

    def _kill(self, program: Program, reason: str) -> None:
        program.reason = program.reason or reason
        program.deadline = math.inf
        for kill in (os.kill, os.killpg):  # also the group: an unprotected program may have started processes
            try:
                kill(program.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has not made its group yet
                pass

    def _reap(self, program: Program) -> None:
        """The process has ended or is about to: clean up and report to the trainer."""
        self._kill(program, program.reason)  # children of an unprotected program
        _, status, usage = os.wait4(program.pid, 0)
        while not program.silent:
            self._receive(program)
        for descriptor in program.descriptors:
            self._forget(descriptor)
            os.close(descriptor)
        program.link.detach()
        del self.programs[program.pid]
        remove(program.folder.value.decode())
        code = os.waitstatus_to_exitcode(status)
        cpu_s = usage.ru_utime + usage.ru_stime
        failed = "" if program.reason else program.failed
        self._send(Ended(program.number, code, program.reason, cpu_s, failed))

    def _forget(self, descriptor: int) -> None:
        if self._handlers.pop(descriptor, None):
            self._poll.unregister(descriptor)

    def _send(self, ended: Ended) -> None:
        try:
            self.trainer.send(json.dumps(asdict(ended)).encode())
        except OSError:  # the trainer has closed its socket
            self.stop()


def _cpu_s(pid: int) -> float:
    """Processor time of a process; 0 if it has ended."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of the kernel
    except OSError:
        return 0.0


def main() -> None:
    """Entry point of the server's process. Its argument is JSON: socket, folder, trainer (pid), protected, limits."""
    given = json.loads(sys.argv[1])
    trainer = socket.socket(fileno=given["socket"])
    os.environ.clear()
    rights, kept = None, []
    try:
        watched = os.pidfd_open(given["trainer"])
        if os.getppid() != given["trainer"]:
            return
        _be_killed_first()
        if given["protected"]:
            rights, kept = lock_server(given["folder"])
        else:
            os.chdir(given["folder"])
            preload()
    except (Unavailable, OSError) as error:
        trainer.send(json.dumps({"unavailable": f"{error}"[:600]}).encode())
        remove(given["folder"])
        return
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    cell = Cell(Limits(**given["limits"]), rights, kept, os.getpid())
    server = Server(trainer, cell)
    server.watch(watched, server.stop)
    gc.disable()
    gc.freeze()  # programs share this memory with the server as long as nobody writes to it
    trainer.send(json.dumps({"ready": True}).encode())
    server.serve()
    remove(given["folder"])


def _be_killed_first() -> None:
    """When the machine runs out of memory, the kernel should kill programs before the trainer."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("700")
    except OSError:
        pass
