"""Programs as models write them to compute something: they print what Python prints."""

from __future__ import annotations

import pytest

from tests.tools.sandboxing import sandbox

PROGRAMS = [
    ("print(2 ** 100)", "1267650600228229401496703205376"),
    ("print('Ærø – 東京 🎲')\nπ = 3\nprint(π)", "Ærø – 東京 🎲\n3"),
    ("print('a')\n\nprint('b')\n", "a\nb"),
    ("if __name__ == '__main__':\n    print('main')", "main"),
    ("import sys\nprint('out'); print('err', file=sys.stderr)", "out\nerr"),
    ("print('x' * 10)\nexit()", "x" * 10),
    ("import atexit\natexit.register(print, 'last')\nprint('first')", "first\nlast"),
    ("def f(n):\n    return n and n + f(n - 1)\nprint(f(500))", "125250"),
    ("print(sorted({'b', 'a', 'c'}), hash('a') == hash('a'))", "['a', 'b', 'c'] True"),
    ("#coding: latin-1\nprint(len('\\xe9'))", "1"),
    ("from decimal import Decimal\nprint(Decimal('0.1') + Decimal('0.2'))", "0.3"),
    ("import random\nrandom.seed(1)\nprint(random.randint(1, 100))", "18"),
    ("import hashlib\nprint(hashlib.sha256(b'').hexdigest()[:8])", "e3b0c442"),
    ("import difflib, graphlib\nprint(difflib.get_close_matches('appel', ['ape', 'apple']))", "['apple', 'ape']"),
    ("import xml.etree.ElementTree as E\nprint(E.fromstring('<a><b/></a>')[0].tag)", "b"),
    ("import sqlite3\nprint(sqlite3.connect(':memory:').execute('select 6 * 7').fetchone())", "(42,)"),
    ("import zlib, bz2\nprint(len(zlib.compress(b'a' * 1000)) < 50)", "True"),
    ("import time\nprint(time.strftime('%H', time.gmtime(3600)), time.time() > 1.6e9)", "01 True"),
    ("import asyncio\nasync def f():\n    await asyncio.sleep(0.01)\n    print(7)\nasyncio.run(f())", "7"),
    ("import pickle, copy\nclass A: x = 1\nprint(pickle.loads(pickle.dumps(A())).x)", "1"),
    (
        "from zoneinfo import ZoneInfo\nfrom datetime import datetime\n"
        "try:\n    print(datetime(2024, 7, 1, tzinfo=ZoneInfo('Europe/Oslo')).utcoffset())\n"
        "except LookupError:\n    print('2:00:00')  # a machine without time zones",
        "2:00:00",
    ),
    ("pass", "[The program printed nothing. Only what it prints is seen.]"),
    ("", "[The program printed nothing. Only what it prints is seen.]"),
    ("print()", "[The program printed nothing. Only what it prints is seen.]"),
    ("import sys\nsys.exit(0)", "[The program printed nothing. Only what it prints is seen.]"),
    ("import sys\nsys.exit(3)", "[The program ended with exit code 3.]"),
    ("import os\nprint('x', flush=True)\nos._exit(9)", "x\n[The program ended with exit code 9.]"),
    ("import os\nos.abort()", "[The program crashed (SIGABRT).]"),
]


@pytest.fixture(scope="module")
def python():
    with sandbox(cpu_s=20, wall_s=120.0) as room:
        yield room


def test_programs_print_what_python_prints(python):
    answers = python.together(program for program, _ in PROGRAMS)
    for (program, expected), answer in zip(PROGRAMS, answers, strict=True):
        assert answer == expected, program


def test_random_numbers_differ_from_program_to_program(python):
    program = "import random, os, uuid\nprint(random.random(), os.urandom(4).hex(), uuid.uuid4())"
    first, second = python.run(program).split(), python.run(program).split()
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_the_order_of_sets_does_not(python):
    program = "print({'alpha', 'beta', 'gamma', 'delta', 'epsilon'})"
    with sandbox() as other:
        assert python.run(program) == other.run(program)


def test_files_of_its_own(python):
    program = """
        import os, shutil, tempfile
        os.makedirs("a/b")
        with open("a/b/c.txt", "w") as file:
            file.write("one\\ntwo\\n")
        os.rename("a/b/c.txt", "a/b/d.txt")
        shutil.copyfile("a/b/d.txt", "e.txt")
        with tempfile.NamedTemporaryFile("w+") as file, open(os.devnull, "w") as nothing:
            print("gone", file=nothing)
            print(open("e.txt").read().split(), os.listdir("a/b"), os.path.exists(file.name))
        os.remove("e.txt")
        shutil.rmtree("a")
        print(os.listdir())
    """
    assert python(program) == "['one', 'two'] ['d.txt'] True\n[]"


def test_threads(python):
    program = """
        from concurrent.futures import ThreadPoolExecutor
        import threading, time
        with ThreadPoolExecutor(4) as pool:
            print(sum(pool.map(lambda n: n * n, range(10))))
        threading.Thread(target=lambda: (time.sleep(0.05), print("last"))).start()
    """
    assert python(program) == "285\nlast"


def test_an_exception_shows_its_lines_after_what_was_printed(python):
    program = "def f(x):\n    return 1 / x\nprint('before')\nf(0)"
    answer = python(program).splitlines()
    assert answer[:2] == ["before", "Traceback (most recent call last):"]
    assert '  File "program.py", line 2, in f' in answer and "    return 1 / x" in answer
    assert answer[-1] == "ZeroDivisionError: division by zero"
    assert not any("sandbox" in line for line in answer)


ERRORS = [
    ("print(1", "SyntaxError: '(' was never closed"),
    ("import numpy_of_another_name", "ModuleNotFoundError: No module named 'numpy_of_another_name'"),
    ("raise ValueError('two\\nlines')", "lines"),
    ("input()", "EOFError: EOF when reading a line"),
    ("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded"),
    ("try:\n    1 / 0\nexcept Exception as e:\n    raise KeyError('b') from e", "KeyError: 'b'"),
    ("class E(Exception):\n    def __str__(self): raise self\nraise E", "E: <exception str() failed>"),
    ("import sys\nsys.exit('that is all')", "that is all"),
]


def test_exceptions(python):
    answers = python.together(program for program, _ in ERRORS)
    for (program, last), answer in zip(ERRORS, answers, strict=True):
        line = answer.splitlines()[-1].removeprefix("__main__.")
        assert line.replace("<unprintable E object>", "<exception str() failed>") == last, (
            program
        )  # Python 3.10's words
