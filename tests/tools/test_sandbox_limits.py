"""Programs that use too much: processor time, memory, output; and output that is no text."""

from __future__ import annotations

import pytest

from tests.tools.sandboxing import sandbox
from verl_ext.tools.sandbox.running import OUTPUT_BYTES

SHOWN = 1000


@pytest.fixture(scope="module")
def python():
    with sandbox(cpu_s=1, wall_s=120.0, memory_mb=256, max_output=SHOWN) as room:
        yield room


@pytest.fixture(scope="module")
def roomy():
    """For programs that do not reach the limit of processor time, however loaded the machine is."""
    with sandbox(cpu_s=60, wall_s=120.0, memory_mb=256, max_output=SHOWN) as room:
        yield room


@pytest.mark.parametrize("program", ["while True: pass", "import re\nre.match('(a+)+b', 'a' * 40)"])
def test_processor_time(python, program):
    before = python.tool.counts()["cpu_timeouts"]
    assert python("print('begun')\n" + program) == "begun\n[The program was ended after 1 s of CPU time.]"
    assert python.tool.counts()["cpu_timeouts"] == before + 1


def test_a_busy_program_is_not_ended_because_the_machine_is_loaded():
    """It waits here, as on a loaded machine, beyond the limit of time; one that has only waited is ended there."""
    waits = "import time\ntime.sleep(2.5)\nprint('done')"
    busy = "import time\nwhile time.process_time() < 0.5: pass\n" + waits
    with sandbox(cpu_s=2, wall_s=2.0) as room:
        assert room.together([busy, waits]) == ["done", "[The program was ended: it took longer than 2 s.]"]


def test_memory(roomy):
    programs = [
        "x = bytearray(10 * 10**9)",
        "x = []\nwhile True: x.append(bytes(10**6))",
        "x = 'a'\nwhile True: x += x",
        "x = [0]\nwhile True: x += x",
        "import ctypes\nctypes.memset((ctypes.c_char * 10**10)(), 1, 10**10)",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(*a): f(*a, 1)\nf(*range(10**4))",
        "import mmap\nx = [mmap.mmap(-1, 10**8) for _ in range(100)]",
    ]
    *others, recursion, mapped = (answer.splitlines()[-1] for answer in roomy.together(programs))
    reached = "[The program needed more memory than the 256 MB it may have.]"
    assert others == [reached] * 5
    assert recursion == reached or "SIGSEGV" in recursion  # the stack may be full first
    assert mapped == "OSError: [Errno 12] Cannot allocate memory"
    assert roomy.counted()["memory"] == 5 + (recursion == reached)


def test_memory_that_is_given_back(roomy):
    assert roomy("for _ in range(8): x = bytearray(8 * 10**7)\nprint(len(x))") == "80000000"


def test_output_without_end(roomy):
    """The program is killed, and its first and last output is shown."""
    answer = roomy("n = 0\nwhile True:\n    print(n)\n    n += 1")
    assert answer.startswith("0\n1\n2\n3\n") and "[cut: longer than" in answer
    assert answer.endswith(f"\n[The program was ended: it printed more than {OUTPUT_BYTES:,} bytes.]")
    assert len(answer) <= SHOWN + 100


def test_ten_megabytes_at_once(roomy):
    for answer in roomy.together(f"import sys\nsys.{stream}.write('x' * 10**7)" for stream in ("stdout", "stderr")):
        assert answer.endswith(f"\n[The program was ended: it printed more than {OUTPUT_BYTES:,} bytes.]")
        assert len(answer) <= SHOWN + 100


SHOWN_AS = [
    (b"a\x00b", "a\\x00b"),
    (b"\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
    (b"\xff\xfe\x80 bad", "\\xff\\xfe\\x80 bad"),
    (b"caf\xc3", "caf\\xc3"),
    ("é\r\nè".encode(), "é\nè"),
    (b"over\rwritten", "over\\x0dwritten"),
    (b"\xed\xa0\x80", "\\xed\\xa0\\x80"),
    (b"\x7f\xc2\x9b", "\\x7f\\x9b"),
]


def test_output_that_is_no_text(roomy):
    answers = roomy.together(f"import os\nos.write(1, {written!r})" for written, _ in SHOWN_AS)
    assert answers == [shown for _, shown in SHOWN_AS]


def test_lone_surrogates_and_null_bytes_in_the_program(roomy):
    assert roomy("print('\ud800')").splitlines()[-1].startswith("SyntaxError")
    assert roomy("print(1)\0").splitlines()[-1].startswith(("SyntaxError", "ValueError"))


def test_both_streams_at_once(roomy):
    """More than two pipes hold: a reader of one after the other would hang."""
    program = """
        import sys, threading
        def flood(stream):
            for _ in range(1000):
                stream.write("x" * 500 + "\\n")
        threads = [threading.Thread(target=flood, args=(s,)) for s in (sys.stdout, sys.stderr)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print("end")
    """
    answer = roomy(program)
    assert "end" in answer and len(answer) <= SHOWN
