"""Hostile programs against files: nothing is read, written or removed outside of a program's own folder."""

from __future__ import annotations

import os
import shutil
import tempfile
import textwrap
from pathlib import Path

import pytest

from tests.tools.sandboxing import sandbox

ROOT = Path(__file__).parents[2]
# Prints what an attempt gave, so that a test sees whether the attempt was refused or just never made.
ATTEMPT = """
import os, sys
def attempt(f, *a, **k):
    try:
        print("DONE", repr(f(*a, **k))[:80])
    except OSError as error:
        print(type(error).__name__)
    except Exception as error:
        print("OTHER", repr(error))
"""


@pytest.fixture(scope="module")
def python():
    with sandbox(cpu_s=10, wall_s=120.0, files=64, file_mb=1) as room:
        yield room


@pytest.fixture
def bystander():
    """A file that everybody may read and write, in a folder where everybody may."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    file = folder / "bystander.txt"
    file.write_text("private")
    file.chmod(0o666)
    try:
        yield file
        assert file.read_text() == "private" and os.listdir(folder) == ["bystander.txt"]
        assert file.stat().st_mode & 0o777 == 0o666
    finally:
        shutil.rmtree(folder)


def test_reading_and_listing(python):
    trainer = os.getpid()
    paths = f"""
        /etc/passwd /etc/hostname /proc/1/environ /proc/self/environ /proc/self/mem /proc/version /dev/zero /dev/mem
        /sys/kernel/uevent_seqnum {ROOT / "README.md"} {__file__} /proc/{trainer}/environ /proc/{trainer}/cmdline
        ../../README.md /proc/self/cwd/../x /proc/self/root/etc/passwd
    """.split()
    folders = ["/", "..", "/tmp", "/proc", "/dev", "/home", "/root", str(ROOT)]
    program = f"""
        for path in {paths!r}:
            attempt(open, path); attempt(os.open, path, os.O_RDWR)
        attempt(open, f"/proc/{{os.getppid()}}/environ"); attempt(os.listdir, f"/proc/{{os.getppid()}}/fd")
        for folder in {folders!r}:
            attempt(os.listdir, folder)
    """
    answers = python(ATTEMPT + textwrap.dedent(program)).split()
    assert len(answers) == 2 * len(paths) + 2 + len(folders)
    for path, answer in zip([path for path in paths for _ in range(2)], answers, strict=False):
        assert answer == "PermissionError" or (answer == "FileNotFoundError" and not os.path.exists(path)), path
    assert set(answers[2 * len(paths) :]) == {"PermissionError"}


def test_environment(python, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "secret-value")
    program = """
        import os, gc, ctypes
        print(dict(os.environ), os.environb, os.getenv("SOME_API_KEY"))
        environ = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
        print([environ[i] for i in range(5) if environ and environ[0] and environ[i]])
    """
    with sandbox() as fresh:
        assert fresh(program) == "{} environ({}) None\n[]"
        # Nor is it anywhere in the memory that programs inherit: the server was started without.
        assert b"SOME_API_KEY" not in Path(f"/proc/{fresh.server.process.pid}/environ").read_bytes()


ATTEMPTS = [
    'attempt(open, P, "r"); attempt(open, P, "w"); attempt(open, P, "a"); attempt(open, P, "r+")',
    "attempt(os.truncate, P, 0); attempt(os.open, P, os.O_RDONLY | os.O_TRUNC)",
    'attempt(os.remove, P); attempt(os.rename, P, "mine"); open("x", "w"); attempt(os.rename, "x", P)',
    "attempt(os.chmod, P, 0); attempt(os.chown, P, 0, 0); attempt(os.utime, P); attempt(os.chmod, D, 0)",
    'attempt(os.link, P, "mine"); attempt(os.symlink, P, "mine"); attempt(os.symlink, "x", D + "/link")',
    'attempt(open, D + "/new", "w"); attempt(os.mkdir, D + "/new"); attempt(os.rmdir, D)',
    'attempt(os.mkfifo, D + "/pipe"); attempt(os.mknod, D + "/node"); attempt(os.mkfifo, "pipe")',
    'attempt(os.setxattr, P, "user.a", b"b"); attempt(os.listdir, D); attempt(os.open, P, os.O_PATH)',
    "attempt(os.open, D, os.O_RDWR | os.O_TMPFILE); attempt(os.open, '.', os.O_RDWR | os.O_TMPFILE)",
    'os.chdir(D); attempt(open, "bystander.txt"); attempt(open, "new", "w"); attempt(os.listdir)',
    'attempt(os.readlink, "/proc/self/exe"); attempt(os.chroot, D); attempt(os.statvfs, D)',
]


def test_a_file_that_everybody_may_write(python, bystander):
    begin = f"{ATTEMPT}\nP, D = {str(bystander)!r}, {str(bystander.parent)!r}\n"
    for attempts, answer in zip(ATTEMPTS, python.together(begin + attempts for attempts in ATTEMPTS), strict=True):
        assert answer and set(answer.split()) == {"PermissionError"}, attempts


def test_symbolic_links_from_outside_lead_nowhere(python, bystander):
    """Even a link that is there already, say from the scratch folder's own file system."""
    link = Path(tempfile.mkdtemp()) / "link"
    link.parent.chmod(0o755)
    link.symlink_to(bystander)
    answer = python(ATTEMPT + f'attempt(open, {str(link)!r}); attempt(open, {str(link)!r}, "w")')
    shutil.rmtree(link.parent)
    assert answer.split() == ["PermissionError"] * 2


def test_the_library_can_be_read_and_not_changed(python):
    program = """
        import json, glob
        folder = os.path.dirname(os.path.dirname(json.decoder.__spec__.origin))
        folder = folder if os.access(folder, os.R_OK) else [p for p in sys.path if p.startswith("/proc")][0]
        assert "json" in os.listdir(folder), os.listdir(folder)
        attempt(open, folder + "/json/decoder.py", "a")
        attempt(os.truncate, folder + "/json/decoder.py", 0)
        attempt(os.open, folder + "/json/decoder.py", os.O_RDONLY | os.O_TRUNC)
        attempt(os.chmod, folder + "/json/decoder.py", 0)
        attempt(os.remove, folder + "/json/decoder.py")
        attempt(open, folder + "/evil.py", "w")
        print(len(open(folder + "/json/decoder.py").read()) > 1000)
    """
    before = Path(os.__file__).parent.joinpath("json/decoder.py").stat()
    assert python(ATTEMPT + textwrap.dedent(program)).split() == ["PermissionError"] * 6 + ["True"]
    after = Path(os.__file__).parent.joinpath("json/decoder.py").stat()
    assert (before.st_size, before.st_mode, before.st_mtime) == (after.st_size, after.st_mode, after.st_mtime)


def test_installed_packages_are_out_of_reach(python):
    packages = Path(os.__file__).parent / "site-packages"
    if not packages.is_dir():
        pytest.skip(f"this Python has no {packages}")
    inside = next((path for path in packages.rglob("*.py")), None) or packages
    program = f"""
        folder = [p for p in sys.path if os.path.exists(p + "/json/decoder.py")][0]
        path = folder + "/" + {str(inside.relative_to(packages.parent))!r}
        print(os.path.exists(path))
        attempt(open, path)
        import pytest
    """
    answer = python(ATTEMPT + textwrap.dedent(program)).splitlines()
    assert answer[:2] == ["True", "PermissionError"] and answer[-1] == "ModuleNotFoundError: No module named 'pytest'"


def test_its_own_folder_cannot_be_removed_or_replaced(python):
    program = """
        import shutil
        here = os.getcwd()
        open("a", "w").close()
        attempt(os.rmdir, here); attempt(shutil.rmtree, here); attempt(os.rename, here, here + "2")
        attempt(os.mkdir, here + "3"); attempt(os.listdir, os.path.dirname(here))
        print(os.path.exists(here), os.listdir(here))
    """
    answer = python(ATTEMPT + textwrap.dedent(program)).splitlines()
    assert answer == ["PermissionError"] * 5 + ["True []"]


@pytest.mark.parametrize(
    ("program", "last"),
    [
        ("os.mkdir('a', 0)\nos.mkdir('b')\nos.chdir('b')\nos.mkdir('c', 0o100)\nprint(1)", "1"),  # removed, too
        ("for n in range(64): open(str(n), 'w').close()\nprint('all')", "all"),  # as many as allowed
        ("keep = []\nwhile True: keep.append(os.pipe())", "OSError: [Errno 24] Too many open files"),
        ("os.closerange(0, 4096)\nprint('x')", "[The program ended with exit code 1.]"),
    ],
)
def test_programs_that_reach_a_limit_leave_nothing(python, program, last):
    assert python(f"import os\n{program}").splitlines()[-1] == last


def test_deep_folders_and_odd_names_are_removed_too(python):
    program = """
        import os
        for n in range(40):
            name = b"\\xff\\n" + b"x" * 200
            os.mkdir(name); os.chdir(name)
        open("leaf", "w").write("x")
        print("deep")
    """
    assert python(program) == "deep"


def test_a_large_file(python):
    program = """
        with open("large", "wb", buffering=0) as file:
            try:
                for _ in range(1024):
                    file.write(bytes(1 << 20))
            except OSError as error:
                print(error, os.path.getsize("large"))
            try:
                file.truncate(1 << 30)
            except OSError as error:
                print(error)
        os.posix_fallocate(os.open("other", os.O_CREAT | os.O_RDWR), 0, 1 << 30)
    """
    answer = python("import os\n" + textwrap.dedent(program)).splitlines()
    assert answer[:2] == ["[Errno 27] File too large 1048576", "[Errno 27] File too large"]
    assert answer[-1].endswith(("Operation not permitted", "File too large"))


def test_exhausting_inodes(python):
    before = python.tool.counts()["files"]
    programs = ["open(str(n), 'w').close()", "os.mkdir(str(n))", "open('same', 'w').close(); os.remove('same')"]
    answers = python.together(f"import os\nfor n in range(10**6): {program}" for program in programs)
    assert answers == ["[The program was ended: it made more than 64 files or folders.]"] * 3
    assert python.tool.counts()["files"] == before + 3


def test_inherited_descriptors_are_none(python):
    program = """
        import os, stat
        for number in range(3, 4096):
            try:
                kind = os.fstat(number).st_mode
            except OSError:
                continue
            assert stat.S_ISDIR(kind), number  # of Python's library, where its path is closed to the user
            try:
                os.write(number, b"x")
                print("wrote", number)
            except OSError:
                pass
            try:
                os.open("../../..", os.O_RDONLY, dir_fd=number)
                print("left", number)
            except OSError:
                pass
        print(os.read(0, 10), os.isatty(0))
    """
    assert python(program) == "b'' False"
