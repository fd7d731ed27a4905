"""Hostile programs in one table: none may take its own answer away, none may reach a program beside it.

An exception from `run_python` voids the trajectory of the agent that wrote the program, and a wrong program would then
cost nothing. So each program of ALONE must get an answer. Each program of BESIDE runs next to another program, which
does all that it can to be found; it is given the other one's process number and folder.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import textwrap
from pathlib import Path

import pytest

from tests.tools.sandboxing import HONEST, sandbox
from tests.tools.test_sandbox_files import ATTEMPT
from verl_ext.tools.sandbox.jail.syscalls import MACHINE

LONG = r"\[The program was ended: it took longer than 3 s\.\]"
CPU = r"\[The program was ended after 1 s of CPU time\.\]"
CRASH = r"\[The program crashed \({}\)\.\]"
KILLED = r"\[The program was killed \(SIGKILL\), by itself or because the machine's memory ran out\.\]"
THREADS = r"\[The program was ended: it started more than 4 threads\.\]"
FILES = r"\[The program was ended: it made more than 16 files or folders\.\]"
OUTPUT = r"(?s).*\[The program was ended: it printed more than 1,048,576 bytes\.\]"
HIDES = "import signal\nfor n in range(1, 65):\n try: signal.signal(n, 1)\n except (OSError, ValueError): pass\n"
BELOW = "import sys\nframe, found = sys._getframe(), {}\nwhile frame: found |= frame.f_locals; frame = frame.f_back\n"

# What the program does -> (its text, the whole answer as a pattern).
ALONE = {
    "ends by a real-time signal": ("import os\nos.kill(os.getpid(), 40)", CRASH.format("signal 40")),
    "raises a real-time signal": ("import signal\nsignal.raise_signal(35)", CRASH.format("signal 35")),
    "ends by the last signal": ("import os\nos.kill(os.getpid(), 64)", CRASH.format("SIGRTMAX")),
    "kills itself": ("import os\nos.kill(os.getpid(), 9)", KILLED),
    "lowers its limit of processor time": (
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (0, 0))\nwhile True: pass",
        f"{KILLED}|{CRASH.format('SIGXCPU')}|{CPU}",
    ),
    "stops itself": ("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", LONG),
    "ignores every signal, and sleeps": (f"{HIDES}import time\nwhile True: time.sleep(1)", LONG),
    "ignores every signal, and computes": (f"{HIDES}while True: pass", CPU),
    "ends its main thread alone": (
        "import ctypes, threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"
        f"ctypes.CDLL(None).syscall({60 if MACHINE == 'x86_64' else 93}, 0)",
        LONG,
    ),
    "ends by an alarm": (
        "import signal, time\nsignal.alarm(1)\ntime.sleep(9)",
        CRASH.format("SIGALRM"),
    ),
    "leaves a thread behind": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\nprint('main is done')",
        rf"main is done\n{LONG}",
    ),
    "reads address 0": ("import ctypes\nctypes.string_at(0)", CRASH.format("SIGSEGV")),
    "overflows the stack": (
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(*a): return f(*a)\nclass A:\n"
        " def __repr__(self): return repr(self)\nrepr(A())",
        CRASH.format("SIGSEGV") + "|" + r"|(.|\n)*(Recursion|Memory)Error(.|\n)*",
    ),
    "starts threads": (
        "import threading as t, time\nwhile 1: t.Thread(target=time.sleep, args=(9,)).start()",
        THREADS,
    ),
    "makes folders in folders": ("import os\nwhile 1: os.mkdir('d', 0o700); os.chdir('d')", FILES),
    "prints no text": ("import os\nwhile 1: os.write(1, bytes(range(256)) * 99)", OUTPUT),
    "prints half characters": ("print('\\udcff\\x1b[2J\\0')", r"\\xff\\x1b\[2J\\x00"),
    "nests brackets": ("(" * 90_000, r"(?s).*(SyntaxError|MemoryError|crashed).*"),
    "has an exception that cannot be shown": (
        "class E(BaseException):\n def __str__(self): raise self\n __repr__ = __str__\nraise E",
        "(?s).*E.*",
    ),
    "breaks what its process does last": (
        "import atexit, os, sys, threading, traceback\nos._exit = sys.stdout = sys.stderr = sys.__stdout__ = None\n"
        "threading._shutdown = traceback.TracebackException = None\n"
        "def hang():\n while True: pass\natexit.register(hang)",
        rf"(?s).*{CPU}",
    ),
    "breaks the module that runs it": (
        "import sys\nm = sys.modules['jail.program']\nm._code_of = lambda _: 'x'\nm._print = m._prepare = None",
        "(?s).+",
    ),
    "closes all descriptors and goes on": ("import os\nos.closerange(0, 4096)\nwhile 1: pass", CPU),
    "answers in the server's place": (
        "import json, os\nfor n in range(3, 4096):\n try: os.write(n, json.dumps({'ended': 1}).encode()); print(n)\n"
        " except OSError: pass\nprint('none')",
        "none",
    ),
    "goes on as the server": (
        f"{BELOW}found['self'].stopped = True\nfound['self'].__class__.serve(found['self'])",
        "(?s).+",
    ),
    "asks the server while alarms interrupt it": (
        "import signal\nsignal.signal(14, lambda *_: None)\nsignal.setitimer(0, 3e-4, 3e-4)\n"
        "while 1: open('x', 'w').close()",
        FILES,
    ),
}

# What the program beside does to be found: it marks what it can, then waits.
SHOWS_ITSELF = (
    ATTEMPT
    + """
import ctypes, fcntl, mmap, os, struct, threading, time
open("secret", "w").write("x" * 31337)
null = open("/dev/null", "r+b", buffering=0)
lock = struct.pack("hhqqi", fcntl.F_WRLCK, 0, 1000, 42, 0)
attempt(fcntl.fcntl, null, fcntl.F_SETLK, lock)
attempt(fcntl.fcntl, null, 37, lock)
attempt(fcntl.fcntl, 0, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND)
def wait_on_a_page_of_the_library():
    library = ctypes.CDLL(None)
    library.mmap.restype = ctypes.c_void_p
    address = library.mmap(None, 4096, 1, 1, os.open(FILE, os.O_RDONLY), 0)
    library.syscall(FUTEX, ctypes.c_void_p(address), 0, *struct.unpack("i", ctypes.string_at(address, 4)), None)
threading.Thread(target=wait_on_a_page_of_the_library, daemon=True).start()
time.sleep(0.1)
with open("pid", "w") as file: file.write(str(os.getpid()))
os.rename("pid", "ready")
time.sleep(60)
"""
)
ASK = "import ctypes, fcntl, os, struct, sys\nlibc = ctypes.CDLL(None, use_errno=True)\n"
CALLS = "for number in {}: print(libc.syscall(number, PID, PID, 0, 0, 0), ctypes.get_errno())"
DENIED = "PermissionError"
# Looks for the 16 hexadecimal digits of a folder's name, of which it knows a hash, in the memory around its objects.
SEARCH = """
import ctypes, hashlib, os, re
libc, seen = ctypes.CDLL(None), set()
out, into = os.pipe()
starts = {id(thing) >> 26 for thing in (object(), [], "a" * 99, seen, libc, re, int)}
heap = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_long)(("sbrk", libc))(0)
pages = {page for start in starts for page in range(start << 26, (start + 1) << 26, 4096)}
pages |= set(range(heap - (48 << 20) & ~4095, heap, 4096))
text = b"".join(os.read(out, 4096) for page in sorted(pages) if libc.write(into, ctypes.c_void_p(page), 4096) == 4096)
found = {hashlib.sha256(name).hexdigest() for name in re.findall(rb"(?=([0-9a-f]{16}))", text)}
print(len(text) > 4 << 20, HASH in found)
"""

# What the program tries -> (its text, the whole answer as a pattern).
BESIDE = {
    "sees its locks": (
        "null = open('/dev/null', 'r+b', buffering=0)\nfor command in (fcntl.F_GETLK, 36):\n"
        " attempt(fcntl.fcntl, null, command, struct.pack('hhqqi', fcntl.F_WRLCK, 0, 0, 0, 0))",
        f"{DENIED}\n{DENIED}",
    ),
    "sees its flags of stdin": ("print(fcntl.fcntl(0, fcntl.F_GETFL) & (os.O_NONBLOCK | os.O_APPEND))", "0"),
    "wakes it through a page of the library": (
        "libc.mmap.restype = ctypes.c_void_p\naddress = libc.mmap(None, 4096, 1, 1, os.open(FILE, os.O_RDONLY), 0)\n"
        "print(libc.syscall(FUTEX, ctypes.c_void_p(address), 1, 9), ctypes.get_errno())",
        "-1 1",
    ),
    "looks for its folder among the objects of the server": (
        f"{BELOW}import gc\nprint(getattr(found.get('self'), 'programs', {{}}))\n"
        "print([p.folder.value for p in gc.get_objects() if type(p).__name__ == 'Program'])",
        r"\{\}\n\[(b'')?\]",
    ),
    "looks for its folder in its memory": (SEARCH, "True False"),
    "opens its folder": (
        "attempt(open, FOLDER + '/secret'); attempt(os.listdir, FOLDER); attempt(open, FOLDER + '/new', 'w')\n"
        "attempt(os.remove, FOLDER + '/secret'); attempt(os.rename, FOLDER, 'mine'); attempt(os.rmdir, FOLDER)",
        "\n".join([DENIED] * 6),
    ),
    "opens its memory and output": (
        "for name in ('mem', 'environ', 'fd/1', 'maps', 'task', 'cwd/secret'): attempt(open, f'/proc/{PID}/{name}')",
        r"((PermissionError|IsADirectoryError)\n?)+",
    ),
    "signals to it": ("for n in (0, 9, 19, 40): attempt(os.kill, PID, n)", "\n".join([DENIED] * 4)),
    "changes its limits": (
        "import resource\nattempt(resource.prlimit, PID, resource.RLIMIT_CPU, (1, 1))\n"
        "attempt(os.sched_setaffinity, PID, {0}); attempt(os.sched_getaffinity, PID)",
        "\n".join([DENIED] * 3),
    ),
    "reads its clock": ("import time\nattempt(time.clock_gettime, (~PID << 3) | 2)", DENIED),
    "attaches to it": (CALLS.format("(101, 310, 311, 434, 312)"), "(-1 1\n?){5}"),
}  # fmt: skip


@pytest.fixture(scope="module")
def room():
    with sandbox(cpu_s=1, wall_s=3.0, threads=4, files=16, memory_mb=128, workers=4) as room:
        yield room


@pytest.mark.parametrize("program", ALONE)
def test_a_hostile_program_gets_an_answer(room, program):
    text, answer = ALONE[program]
    said = room(text)
    assert re.fullmatch(answer, said), said


@pytest.mark.skipif(MACHINE != "x86_64" or not os.path.exists("/usr/share/zoneinfo/UTC"), reason="its numbers and file")
@pytest.mark.parametrize("program", BESIDE)
def test_a_hostile_program_does_not_reach_the_one_beside_it(program):
    """The program beside gets to its end, too, and finds its file as it was."""
    text, answer = BESIDE[program]
    given = "FUTEX, FILE = 202, '/usr/share/zoneinfo/UTC'\n"

    async def both(room):
        beside = asyncio.ensure_future(room.tool(program=given + SHOWS_ITSELF))
        while not (found := list(Path(room.server.folder).glob("*/ready"))):
            assert not beside.done(), beside.result()
            await asyncio.sleep(0.01)
        folder, pid = found[0].parent, int(found[0].read_text())
        given_too = (
            f"PID, FOLDER, HASH = {pid}, {str(folder)!r}, {hashlib.sha256(folder.name.encode()).hexdigest()!r}\n"
        )
        if program.startswith("looks for"):
            given_too = given_too.replace(str(folder), "")
        said = await room.tool(program=given + given_too + ATTEMPT + ASK + textwrap.dedent(text))
        assert not beside.done()
        assert len((folder / "secret").read_text()) == 31337
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)
        return said

    with sandbox(wall_s=60.0, memory_mb=512) as room:
        assert room.run(HONEST) == "42"
        said = room.loop.run_until_complete(both(room))
        assert re.fullmatch(answer, said), said
