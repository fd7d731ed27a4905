"""The cache of `run_python`, and its identity."""

from __future__ import annotations

import asyncio

from tests.tools.sandboxing import HONEST, SLEEPS, gone, running, sandbox
from verl_ext.tools.sandbox import run_python

KILLS_ITSELF = "import os\nos.kill(os.getpid(), 9)"


def test_a_cache_runs_a_program_once_and_no_cache_each_time():
    program = "import random\nprint(random.random())"
    with sandbox(cache=2) as room:
        assert room.run(program) == room.run(program)
        assert room.run("print(1)") == "1"
        again = room.run(program)  # asked for last: print(1) goes first
        assert room.run("print(2)") == "2" and room.run(program) == again
        assert room.run("print(1)") == "1"
        assert room.counted() == {"runs": 4, "cached": 3}
    with sandbox() as room:
        assert room.run(program) != room.run(program)


def test_identical_programs_at_once_run_once():
    program = "import random, time\ntime.sleep(0.2)\nprint(random.random())"

    async def scene(room):
        return await asyncio.gather(*(room.tool(program=program) for _ in range(8)))

    with sandbox(cache=10) as room:
        assert len(set(room.loop.run_until_complete(scene(room)))) == 1
        assert room.counted() == {"runs": 1, "cached": 7}


def test_one_of_several_waiting_gives_up():
    async def scene(room):
        tasks = [asyncio.ensure_future(room.tool(program="import time\ntime.sleep(0.3)\nprint(1)")) for _ in range(3)]
        await running(room)
        tasks[0].cancel()
        return await asyncio.gather(*tasks[1:])

    with sandbox(cache=10) as room:
        room.run("1")
        assert room.loop.run_until_complete(scene(room)) == ["1", "1"]
        assert room.counted() == {"runs": 2, "cached": 2}


def test_all_who_wait_give_up():
    async def scene(room):
        tasks = [asyncio.ensure_future(room.tool(program=SLEEPS)) for _ in range(3)]
        (pid,) = await running(room)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return pid

    with sandbox(cache=10) as room:
        room.run("1")
        assert gone(room.loop.run_until_complete(scene(room)))
        assert room.tool._running == {}


def test_what_the_cache_keeps():
    """Results of the program, limits too; not what depends on the load of the machine, nor failures of the sandbox."""
    with sandbox(cache=10, wall_s=120.0) as room:
        assert room.run("1 / 0") == room.run("1 / 0")
        assert room.counted() == {"runs": 1, "cached": 1, "errors": 1}
    with sandbox(cache=10, wall_s=0.3) as room:
        assert room.run(SLEEPS) != "" != room.run(SLEEPS)
        assert room.counted() == {"runs": 2, "wall_timeouts": 2}
    with sandbox(cache=10) as room:  # as the kernel does when the memory of the machine runs out
        assert room.run(KILLS_ITSELF) == room.run(KILLS_ITSELF) != ""
        assert room.counted() == {"runs": 2, "crashes": 2}


def test_identity_is_what_answers_depend_on():
    identity = run_python.identity(workers=3, cache=9, cpu_s=7)
    assert identity["cpu_s"] == 7 and "python" in identity and not {"workers", "cache"} & set(identity)


def test_the_least_memory_is_enough():
    with sandbox(memory_mb=64, file_mb=1, threads=0, files=0) as room:
        assert room.run(HONEST) == "42"
        assert room.run("open('x', 'w')") == "[The program was ended: it made more than 0 files or folders.]"
