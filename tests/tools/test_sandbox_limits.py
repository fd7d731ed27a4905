"""Programs that use too much: processor time, memory, output; and output that is no text."""

from __future__ import annotations

import time
import unicodedata

import pytest

from tests.tools.sandboxing import sandbox
from verl_ext.tools.sandbox.running import OUTPUT_BYTES

SHOWN = 1000


@pytest.fixture(scope="module")
def python():
    with sandbox(cpu_s=1, wall_s=30.0, memory_mb=256, max_output=SHOWN) as room:
        yield room


@pytest.mark.parametrize("program", ["while True: pass", "2 ** 10**9 % 7", "import re\nre.match('(a+)+b', 'a' * 40)"])
def test_processor_time(python, program):
    before = python.tool.counts()["cpu_timeouts"]
    assert python("print('begun')\n" + program) == "begun\n[The program was ended after 1 s of CPU time.]"
    assert python.tool.counts()["cpu_timeouts"] == before + 1


@pytest.mark.parametrize(
    "program",
    [
        "x = bytearray(10 * 10**9)",
        "x = []\nwhile True: x.append(bytes(10**6))",
        "x = 'a'\nwhile True: x += x",
        "x = [0]\nwhile True: x += x",
        "import mmap\nx = [mmap.mmap(-1, 10**8) for _ in range(100)]",
        "import ctypes\nctypes.memset((ctypes.c_char * 10**10)(), 1, 10**10)",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(*a): f(*a, 1)\nf(*range(10**4))",
    ],
)
def test_memory(python, program):
    before = python.tool.counts()["memory"]
    lines = python(program).splitlines()
    if "mmap" in program:
        assert lines[-1] == "OSError: [Errno 12] Cannot allocate memory"
    elif "recursion" in program and "SIGSEGV" in lines[-1]:
        pass  # its stack was full before its memory, which depends on how frames are laid out
    else:
        assert lines[-1] == "[The program needed more memory than the 256 MB it may have.]"
        assert python.tool.counts()["memory"] == before + 1


def test_memory_that_is_given_back(python):
    assert python("for _ in range(8): x = bytearray(8 * 10**7)\nprint(len(x))") == "80000000"


def test_recursion_in_c(python):
    """Beyond the stack Python itself crashes, or sees it coming; the next program runs."""
    program = """
        import sys
        sys.setrecursionlimit(10**9)
        class A:
            def __getattr__(self, name): return getattr(self, name)
        A().x
    """
    last = python(program).splitlines()[-1]
    assert last == "[The program crashed (SIGSEGV).]" or last.startswith(("RecursionError", "[The program "))


def test_deeply_nested_source(python):
    assert "Error" in python("(" * 5000 + ")" * 5000)


def test_output_without_end(python):
    """Ended, and what was printed first and last is seen."""
    begun = time.monotonic()
    answer = python("n = 0\nwhile True:\n    print(n)\n    n += 1")
    assert time.monotonic() - begun < 15  # not only when its time was up
    assert answer.startswith("0\n1\n2\n3\n") and "[cut: longer than" in answer
    assert answer.endswith(f"\n[The program was ended: it printed more than {OUTPUT_BYTES:,} bytes.]")
    assert len(answer) <= SHOWN + 100


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_ten_megabytes_at_once(python, stream):
    answer = python(f"import sys\nsys.{stream}.write('x' * 10**7)")
    assert answer.endswith(f"\n[The program was ended: it printed more than {OUTPUT_BYTES:,} bytes.]")
    assert len(answer) <= SHOWN + 100


def test_output_that_is_cut(python):
    answer = python("print('first')\nprint('x' * 5000)\nprint('last')")
    assert answer.startswith("first\nxxx") and answer.endswith("xxx\nlast") and len(answer) <= SHOWN
    assert python.counted()["output_cut"] >= 1


def test_a_long_output_does_not_hide_the_exception(python):
    answer = python("print('first')\nprint('x' * 5000)\n1 / 0")
    assert answer.startswith("first\nx") and answer.endswith("ZeroDivisionError: division by zero")
    assert len(answer) <= SHOWN


def test_a_long_exception_shows_its_end(python):
    answer = python("raise ValueError('x' * 5000 + '\\nthe end')")
    assert answer.startswith("… [cut]\n") and answer.endswith("\nthe end") and len(answer) <= SHOWN


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"a\x00b", "a\\x00b"),
        (b"\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
        (b"\xff\xfe\x80 bad", "\\xff\\xfe\\x80 bad"),
        (b"caf\xc3", "caf\\xc3"),
        ("é\r\nè".encode(), "é\nè"),
        (b"over\rwritten", "over\\x0dwritten"),
        (b"\xed\xa0\x80", "\\xed\\xa0\\x80"),
        (b"\x7f\xc2\x9b", "\\x7f\\x9b"),
    ],
)
def test_output_that_is_no_text(python, written, shown):
    assert python(f"import os\nos.write(1, {written!r})") == shown


def test_all_bytes(python):
    answer = python("import os\nos.write(1, bytes(range(256)) * 100)\nos.write(2, os.urandom(1000))")
    assert len(answer) <= SHOWN and {c for c in answer if unicodedata.category(c) in ("Cc", "Cs")} <= {"\n", "\t"}


def test_lone_surrogates_and_null_bytes_in_the_program(python):
    assert python("print('\ud800')").splitlines()[-1].startswith("SyntaxError")
    assert python("print(1)\0").splitlines()[-1].startswith(("SyntaxError", "ValueError"))


def test_output_before_the_end_is_not_lost(python):
    assert python("import os\nprint('seen')\nos._exit(0)") == "seen"
    assert python("print('seen')\nwhile True: pass").startswith("seen\n")


def test_both_streams_at_once(python):
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
    answer = python(program)
    assert "end" in answer and len(answer) <= SHOWN
