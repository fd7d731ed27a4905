"""The tool around the sandbox: many at once, cancelling, closing, a server that is lost, what is no program."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time

import pytest

from tests.tools.sandboxing import HONEST, SLEEPS, gone, left_behind, processes_of, running, sandbox
from verl_ext.tools.base import ToolError
from verl_ext.tools.sandbox import forkserver, run_python
from verl_ext.tools.sandbox.tool import MAX_PROGRAM


def test_thirty_two_at_once():
    """Each gets its own answer, hostile neighbours or not; never more run than there are workers."""
    hostile = ["while True: pass", "x = bytearray(10**10)", "import os\nos.abort()", "while True: print('x' * 99)"]

    async def scene(room):
        most = 0

        async def watch():
            nonlocal most
            while True:
                if room.tool._pool._server:
                    most = max(most, len(left_behind(room.server)[0]))
                await asyncio.sleep(0.005)

        watching = asyncio.ensure_future(watch())
        programs = [hostile[n // 8] if n % 8 == 0 else f"print({n} * {n})" for n in range(32)]
        answers = await asyncio.gather(*(room.tool(program=program) for program in programs))
        watching.cancel()
        return most, answers

    with sandbox(workers=4, cpu_s=1, wall_s=120.0) as room:
        room.run("1")
        most, answers = room.loop.run_until_complete(scene(room))
        assert 2 <= most <= 4
        assert [answers[n] for n in range(32) if n % 8] == [str(n * n) for n in range(32) if n % 8]
        assert all("[The program" in answers[n] for n in range(0, 32, 8))
        assert left_behind(room.server) == ([], [])
        assert room.counted() == {
            "runs": 33, "cpu_timeouts": 1, "memory": 1, "crashes": 1, "output": 1, "output_cut": 1,
        }  # fmt: skip


def test_cancelling_kills_the_program_and_whoever_waits_for_its_turn():
    async def scene(room):
        first = asyncio.ensure_future(room.tool(program=SLEEPS))
        (pid,) = await running(room)
        second = asyncio.ensure_future(room.tool(program=HONEST))
        await asyncio.sleep(0.05)
        second.cancel()
        first.cancel()
        ends = await asyncio.gather(first, second, return_exceptions=True)
        return pid, [type(end) for end in ends], await asyncio.wait_for(room.tool(program=HONEST), 60)

    with sandbox(workers=1, wall_s=60.0) as room:
        room.run("1")
        pid, ends, answer = room.loop.run_until_complete(scene(room))
        assert gone(pid) and ends == [asyncio.CancelledError] * 2
        assert answer == "42" and room.counted() == {"runs": 2}


def test_cancelling_the_very_first_call():
    """While the server starts: the next call starts another."""

    async def scene(room):
        task = asyncio.ensure_future(room.tool(program=HONEST))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        return await room.tool(program=HONEST)

    with sandbox() as room:
        assert room.loop.run_until_complete(scene(room)) == "42"


def test_closing_kills_everything():
    async def scene(room):
        tasks = [asyncio.ensure_future(room.tool(program=f"n = {n}\n{SLEEPS}")) for n in range(5)]
        await running(room, 3)
        server = room.server
        await asyncio.wait_for(room.tool.close(), 60)
        return server, await asyncio.gather(*tasks, return_exceptions=True)

    with sandbox(workers=3) as room:
        room.run("1")
        server, ends = room.loop.run_until_complete(scene(room))
        assert processes_of(server.folder) == [] and not os.path.exists(server.folder)
        assert all(isinstance(end, ToolError) for end in ends), ends
        assert room.run(HONEST) == "42"  # whoever calls again gets a new one


def test_closing_twice_and_before_the_first_call():
    with sandbox() as room:
        room.loop.run_until_complete(room.tool.close())
        assert room.run(HONEST) == "42"
        room.loop.run_until_complete(room.tool.close())
        room.loop.run_until_complete(room.tool.close())


def test_a_server_that_dies_is_replaced_and_its_programs_run_again():
    async def scene(room):
        tasks = [
            asyncio.ensure_future(room.tool(program=f"import time\ntime.sleep(0.3)\nprint({n})")) for n in range(3)
        ]
        pids = await running(room, 3)
        os.kill(room.server.process.pid, signal.SIGKILL)
        return pids, await asyncio.gather(*tasks)

    with sandbox() as room:
        room.run("1")
        folder = room.server.folder
        pids, answers = room.loop.run_until_complete(scene(room))
        assert answers == ["0", "1", "2"] and all(gone(pid) for pid in pids)
        assert room.counted() == {"runs": 4, "restarts": 1}
        assert not os.path.exists(folder) and processes_of(folder) == []


def test_a_server_that_hangs_is_replaced(monkeypatch):
    monkeypatch.setattr(forkserver, "GRACE_S", 0.3)

    async def scene(room):
        hung = room.server.process.pid
        os.kill(hung, signal.SIGSTOP)
        answer = await asyncio.wait_for(room.tool(program=HONEST), 60)
        return hung, answer

    with sandbox(wall_s=6.0) as room:
        room.run("1")
        hung, answer = room.loop.run_until_complete(scene(room))
        assert gone(hung) and answer == "42" and room.counted()["restarts"] == 1


def test_a_server_that_never_works_is_a_tool_error(monkeypatch):
    """Not a result: the caller tries again, and counts it."""
    monkeypatch.setattr(forkserver.sys, "executable", "/bin/false")
    with sandbox() as room, pytest.raises(ToolError, match="the sandbox's server has ended"):
        room.run(HONEST)
    monkeypatch.setattr(forkserver.sys, "executable", "/nowhere/python")
    with sandbox() as room, pytest.raises(ToolError, match="cannot be started"):
        room.run(HONEST)


def test_another_event_loop():
    """A tool whose loop has ended without closing it works in the next one, and leaves nothing of the first."""
    tool = run_python()

    async def once(close=False):
        answer = await tool(program=HONEST)
        folder = tool._pool._server.folder
        if close:
            await tool.close()
        return answer, folder

    first, second = asyncio.run(once()), asyncio.run(once(close=True))
    assert first[0] == second[0] == "42" and first[1] != second[1]
    until = time.monotonic() + 60
    while (os.path.exists(first[1]) or processes_of(first[1])) and time.monotonic() < until:
        time.sleep(0.01)
    assert not os.path.exists(first[1]) and processes_of(first[1]) == []


@pytest.mark.parametrize(
    ("program", "given"),
    [
        (None, "NoneType"),
        (3, "int"),
        (["print(1)"], "list"),
        ("#" * (MAX_PROGRAM + 1), "100,001 characters"),
    ],
)
def test_what_is_no_program_is_answered(program, given):
    tool = run_python()
    answer = asyncio.run(tool(program=program))
    assert answer == f"[Nothing was run: program must be Python of at most 100,000 characters, given {given}.]"
    assert {name: n for name, n in tool.counts().items() if n} == {"refused": 1}


def test_the_longest_program():
    with sandbox() as room:
        assert room.run("#" * (MAX_PROGRAM - 9) + "\nprint(1)") == "1"


def test_too_many_open_files_of_the_trainer_are_a_tool_error():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with sandbox() as room:
        room.run("1")
        used = len(os.listdir("/proc/self/fd"))
        for more in (0, 1, 3):
            highest = max(map(int, os.listdir("/proc/self/fd"))) + 1
            holes = [os.open("/dev/null", os.O_RDONLY) for _ in range(highest - len(os.listdir("/proc/self/fd")))]
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + more, hard))
            try:
                with pytest.raises(ToolError, match="Too many open files"):
                    room.run(HONEST)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                for descriptor in holes:
                    os.close(descriptor)
        assert room.run(HONEST) == "42" and len(os.listdir("/proc/self/fd")) == used
