"""Hostile programs against other processes: no child, no signal, no daemon, nothing left for the next program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from tests.tools.sandboxing import HONEST, SLEEPS, gone, running, sandbox
from tests.tools.test_sandbox_files import ATTEMPT


@pytest.fixture(scope="module")
def python():
    with sandbox(cpu_s=1, wall_s=120.0, threads=16) as room:
        yield room


FORBIDDEN = [
    "import os\nos.fork()",
    "import os\nos.forkpty()",
    "import os\nos.posix_spawn('/bin/true', ['true'], {})",
    "import os\nos.execv('/bin/sh', ['sh', '-c', 'echo out'])",
    "import subprocess\nprint(subprocess.run('id', shell=True))",
    "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'print(1)'])",
    "import multiprocessing as m\nm.get_context('fork').Process(target=print, args=(1,)).start()",
    "import os\nos.setsid()\nos.setpgid(0, 0)",
    "import os\nos.nice(1)",
    "import os\nos.sched_setaffinity(os.getppid(), {0})",
    "import os\nos.pidfd_open(os.getppid())",
    "import os\nos.setuid(0)",
    "import os\nos.setgroups([0])",
    "import os\nos.memfd_create('x')",
    "import os\nos.unshare(0)" if hasattr(os, "unshare") else "raise PermissionError('[Errno 1]')",
    "import resource, os\nresource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (100, 100))",
    "import fcntl, os\nr, w = os.pipe()\nfcntl.fcntl(r, fcntl.F_SETOWN, os.getppid())",
    "import fcntl, os, struct\nr, w = os.pipe()\nfcntl.ioctl(r, 0x5452, struct.pack('i', 1))",  # FIOASYNC
    "import fcntl, os, struct\nr, w = os.pipe()\nfcntl.ioctl(r, 0x5412, b'x')",  # TIOCSTI
]
REFUSALS = ("PermissionError: [Errno 1", "PermissionError: [Errno 13", "BlockingIOError")


def test_forbidden_calls_end_with_an_error_and_leave_no_process(python):
    for program, answer in zip(FORBIDDEN, python.together(FORBIDDEN), strict=True):
        last = answer.splitlines()[-1]
        assert last.startswith(REFUSALS) or last == "ValueError: not allowed to raise maximum limit", (program, last)


def test_signals_to_others(python):
    """To the server, the trainer, all processes of the user, and the own group. Signal 0 asks whether one might."""
    targets = f"(os.getppid(), {os.getpid()}, 1, -1, 0, -os.getpid(), -os.getppid(), -{os.getpgrp()})"
    program = f"for target in {targets}: attempt(os.kill, target, 0)\n"
    program += "for number in (1, 2, 9, 15, 19): attempt(os.kill, os.getppid(), number)"
    assert python(ATTEMPT + program).split() == ["PermissionError"] * 13


def test_signals_through_a_thread_or_a_queue(python):
    program = f"""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        server, trainer = os.getppid(), {os.getpid()}
        # tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal
        for number, second in ((200, 0), (234, None), (129, 0), (297, None), (424, 0)):
            for pid in (server, trainer):
                print(libc.syscall(number, pid, pid if second is None else second, 0, 0), ctypes.get_errno())
    """
    if os.uname().machine != "x86_64":
        pytest.skip("numbers of x86-64")
    assert set(python(ATTEMPT + textwrap.dedent(program)).splitlines()) == {"-1 1"}


def test_threads_share_one_budget_of_processor_time(python):
    program = """
        import threading
        def burn():
            while True:
                pass
        for _ in range(8):
            threading.Thread(target=burn, daemon=True).start()
        burn()
    """
    assert python(program) == "[The program was ended after 1 s of CPU time.]"


def test_poison_does_not_reach_the_next_program(python):
    program = """
        import builtins, sys, math, json, gc, os, random, types
        builtins.print = lambda *a, **k: None
        builtins.int = builtins.len = None
        math.pi = json.loads = 3
        random.random = lambda: 4
        sys.modules["math"] = sys.modules["json"] = types.ModuleType("evil")
        sys.path[:] = []
        sys.meta_path[:] = []
        sys.setrecursionlimit(60)
        os._exit = sys.exit = sys.stdout.write = sys.excepthook = None
        for thing in gc.get_objects():
            if isinstance(thing, dict) and "number" in thing:
                thing.clear()
        sys.__stdout__.flush()
    """
    python.run(program)
    check = """
        import math, json, random, sys, colorsys
        print(round(math.pi, 2), json.loads("[1]"), random.random() != 4, len("abc"), sys.getrecursionlimit())
    """
    assert python(check) == "3.14 [1] True 3 1000"


def test_the_programs_of_a_killed_server_die(python):
    with sandbox() as room:
        room.run("1")
        task = room.loop.create_task(room.tool(program=SLEEPS))
        (pid,) = room.loop.run_until_complete(running(room))
        folder = room.server.folder
        task.cancel()
        os.kill(room.server.process.pid, signal.SIGKILL)
        assert gone(pid)
        assert room.run(HONEST) == "42" and room.server.folder != folder


def test_everything_dies_with_the_trainer(tmp_path):
    """The trainer is killed: its server ends its programs, removes their folders and goes."""
    trainer = """
        import asyncio, os, time
        from verl_ext.tools.sandbox import run_python
        async def main():
            tool = run_python(wall_s=300.0, cpu_s=300)
            print(await tool(program="import os\\nprint(os.getppid(), os.getcwd())"), flush=True)
            if os.fork() == 0:  # keeps the socket to the server open
                time.sleep(600)
                os._exit(0)
            await tool(program="open('x', 'w')\\nwhile True: pass")
        asyncio.run(main())
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(trainer)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=os.getcwd(),
        start_new_session=True,
    )
    assert process.stdout is not None
    pid, folder = process.stdout.readline().split()
    until = time.monotonic() + 60
    while not list(Path(folder).parent.glob("*/x")) and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    process.wait()
    process.stdout.close()
    try:
        assert gone(int(pid)) and not os.path.exists(os.path.dirname(folder))
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def test_a_trainer_with_many_threads():
    """The server is told of the end of the trainer's process, not of the thread that started it."""
    rooms, meet = [], threading.Barrier(2)

    def work():
        with sandbox() as room:
            rooms.append(room.run(HONEST))
            meet.wait(60)
            rooms.append(room.run(HONEST))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rooms == ["42"] * 4
