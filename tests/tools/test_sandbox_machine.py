"""Machines: an ordinary user, a Python that others cannot reach, a kernel without the locks, and no protection."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

from tests.tools.sandboxing import gone, sandbox
from verl_ext.tools.sandbox import run_python
from verl_ext.tools.sandbox.jail import folders

ROOT = Path(__file__).parents[2]
ORDINARY = 23456
AS_ROOT = os.geteuid() == 0
# A process that loses a system call to a seccomp filter, as under an old kernel or a strict container, and then asks.
WITHOUT = """
import asyncio, struct
from verl_ext.tools.sandbox import run_python
from verl_ext.tools.sandbox.jail import kernel, seccomp
kernel.no_new_privileges()
op = lambda *parts: struct.pack("=HBBI", *parts)
filter = op(0x20, 0, 0, 0)
for name in {names!r}:
    filter += op(0x15, 0, 1, kernel.NUMBERS[name]) + op(0x06, 0, 0, 0x00050000 | {error})
seccomp.install(filter + op(0x06, 0, 0, 0x7FFF0000))
try:
    run_python.preflight()
except ValueError as error:
    print(error)
run_python.preflight(unprotected=True)
print("passed without protection")
"""


def reachable_python() -> str | None:
    """A Python of this version that every user can start: this one, or the machine's."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (os.path.realpath(sys.executable), f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        parents = [Path(path), *Path(path).parents]
        if all(place.exists() and place.stat().st_mode & 0o005 == 0o005 for place in parents):
            return path
    return None


def as_ordinary(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    python = reachable_python()
    if not AS_ROOT:
        pytest.skip("this is an ordinary user: the other tests are it")
    if python is None:
        pytest.skip(f"no Python {sys.version_info.major}.{sys.version_info.minor} that an ordinary user can start")
    home.chmod(0o777)
    packages = [str(ROOT), *{sysconfig.get_path(name) for name in ("purelib", "platlib")}]
    environment = {
        "PYTHONPATH": ":".join(packages),
        "TMPDIR": str(home),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": "/bin",
    }
    environment |= {"HYPOTHESIS_STORAGE_DIRECTORY": str(home), "HOME": str(home), "SOME_API_KEY": "secret-value"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, *words], user=ORDINARY, group=ORDINARY, extra_groups=[], env=environment, cwd=ROOT,
            capture_output=True, text=True, timeout=500,
        )  # fmt: skip

    reached = run("-c", "import pytest, tests.helpers, verl_ext.tools.sandbox")
    if reached.returncode:
        reason = reached.stderr.strip().rpartition("\n")[2]
        pytest.skip(f"an ordinary user cannot reach this installation ({reason}). Remedy: folders that all may enter")
    return run(*arguments)


@pytest.fixture
def home():
    folder = Path(tempfile.mkdtemp())
    yield folder
    shutil.rmtree(folder)


def test_as_an_ordinary_user(home):
    """The hostile programs once more, by a user without privileges: those of every kind that take no time."""
    chosen = "not bomb and not large and not stops and not ignores and not end and not budget and not server"
    tests = [f"tests/tools/test_sandbox_{name}.py" for name in ("files", "processes", "syscalls")]
    done = as_ordinary("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests, "-k", chosen, home=home)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert int(done.stdout.rsplit(" passed")[0].split()[-1]) > 50, done.stdout


@pytest.mark.skipif(not AS_ROOT, reason="only root changes users")
def test_root_becomes_nobody():
    with sandbox() as room:
        assert room("import os\nprint(os.getuid(), os.geteuid(), os.getgid(), os.getegid())") == "65534 " * 3 + "65534"
        status = Path(f"/proc/{room.server.process.pid}/status").read_text()
        lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert lines["Uid"].split() == lines["Gid"].split() == ["65534"] * 4 and not lines["Groups"].strip()
        assert all(int(lines[kind], 16) == 0 for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb"))
        assert lines["NoNewPrivs"] == "1"


@pytest.mark.skipif(not AS_ROOT, reason="only root changes users")
def test_a_python_that_others_cannot_reach(monkeypatch):
    """Root's own Python, for example under /root: what programs import late is found all the same."""
    python = reachable_python()
    if python is None:
        pytest.skip("no Python that can be put under a locked folder by a link")
    library = Path(subprocess.check_output([python, "-c", "import os; print(os.__file__)"], text=True).strip()).parent
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "python"
        left_out = shutil.ignore_patterns("test*", "*-packages", "idlelib", "lib2to3")
        shutil.copytree(library, prefix / "lib" / library.name, ignore=left_out)
        (prefix / "bin").mkdir()
        shutil.copy(python, prefix / "bin" / "python3")
        monkeypatch.setattr("verl_ext.tools.sandbox.forkserver.sys.executable", str(prefix / "bin" / "python3"))
        for mode, begins in ((0o700, "/proc/self/fd/"), (0o755, str(prefix))):
            Path(folder).chmod(mode)
            with sandbox(cpu_s=20, wall_s=120.0) as room:
                place, encoded, refused = room.together(
                    [
                        "import sys, colorsys, json.tool, xml.dom.minidom\nprint(colorsys.__file__)",
                        "print('é'.encode('cp500'))",
                        f"open({str(prefix / 'bin' / 'python3')!r}, 'rb')",
                    ]
                )
                assert place.startswith(begins) and place.endswith("colorsys.py")
                assert encoded == "b'Q'" and "PermissionError" in refused


@pytest.mark.skipif(not AS_ROOT, reason="only root can be kept out of nothing")
def test_a_temporary_folder_that_others_cannot_reach(monkeypatch):
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        with sandbox() as room:
            assert room("open('x', 'w').write('y')\nprint(open('x').read())") == "y"


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("landlock_create_ruleset", 38, "Landlock is not available"),
        ("seccomp", 1, "seccomp refuses"),
        *([("capset", 1, "capset")] if AS_ROOT else []),
    ],
)
def test_a_machine_without_a_lock_is_refused(name, error, words, tmp_path):
    code = WITHOUT.format(names=[name], error=error)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment)
    refusal, passed = done.stdout.splitlines()
    assert refusal.startswith("run_python: ") and words in refusal, done.stderr
    assert "Remedy" in refusal and "unprotected=true" in refusal
    assert passed == "passed without protection" and os.listdir(tmp_path) == []


# What Docker's default profile denies of what a sandbox might have used, and the capabilities that it leaves.
DOCKER = """
import os, struct, sys
from verl_ext.tools.sandbox.jail import kernel, seccomp
op = lambda *parts: struct.pack("=HBBI", *parts)
filter = op(0x20, 0, 0, 0)
for number, error in ((435, 38), *((n, 1) for n in (272, 308, 165, 166, 438, 321, 298, 323, 304, 161, 155, 428, 440))):
    filter += op(0x15, 0, 1, number) + op(0x06, 0, 0, 0x00050000 | error)
seccomp.install(filter + op(0x06, 0, 0, 0x7FFF0000))
for capability in set(range(41)) - {0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31}:
    kernel.call("prctl", 24, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""


@pytest.mark.skipif(not AS_ROOT or os.uname().machine != "x86_64", reason="root's container, numbers of x86-64")
def test_root_in_a_container_as_docker_makes_them():
    code = """
import asyncio, ctypes
from verl_ext.tools.sandbox import run_python
run_python.preflight()
print("closed in" if ctypes.CDLL(None).unshare(0x10000000) else "open")
async def main():
    tool = run_python()
    print(await tool(program="import os\\nprint(os.getuid(), 6 * 7)\\nopen('/etc/passwd')"))
    await tool.close()
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", DOCKER, code], capture_output=True, text=True, cwd=ROOT, timeout=500)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["closed in", "65534 42"], done.stdout + done.stderr
    assert lines[-1] == "PermissionError: [Errno 13] Permission denied: '/etc/passwd'"


def test_a_lock_that_does_not_hold_is_noticed(monkeypatch):
    """The probe: what it tries succeeds without protection."""
    from verl_ext.tools.sandbox import pool
    from verl_ext.tools.sandbox.forkserver import ForkServer, NoSandbox
    from verl_ext.tools.sandbox.jail.limits import Limits

    async def scene():
        server = await ForkServer.start(Limits(), protected=False)
        with pytest.raises(NoSandbox, match="does not hold.*files.*sockets.*processes.*signals.*modes"):
            await pool._probe(server)

    asyncio.run(scene())


def test_preflight_passes_here_and_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def inside_a_loop():
        run_python.preflight(cpu_s=1)

    run_python.preflight()
    asyncio.run(inside_a_loop())
    assert os.listdir(tmp_path) == []


def test_another_system(monkeypatch):
    monkeypatch.setattr("verl_ext.tools.sandbox.forkserver.sys.platform", "darwin")
    with pytest.raises(ValueError, match="needs Linux; this is darwin. Remedy: run it in a Linux container"):
        run_python.preflight()


def test_unprotected_programs_have_limits_too(tmp_path):
    """No locks: files of this user and other processes are open to them. Time, memory and output are limited."""
    with sandbox(unprotected=True, cpu_s=1, wall_s=120.0, memory_mb=256) as room:
        assert room(f"open({str(tmp_path / 'x')!r}, 'w').write('y')\nprint(1)") == "1"
        assert (tmp_path / "x").read_text() == "y"
        assert room("while True: pass") == "[The program was ended after 1 s of CPU time.]"
        assert room("x = bytearray(10**9)").endswith("[The program needed more memory than the 256 MB it may have.]")
        assert "it printed more than" in room("while True: print('x' * 99)")
        assert room("import os\nprint(dict(os.environ))") == "{}"


def test_children_of_unprotected_programs_end_with_them():
    program = """
        import os, time
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            time.sleep(0.1)
        else:
            time.sleep(600)
    """
    with sandbox(unprotected=True) as room:
        assert gone(int(room(program).split()[0]))


def test_removing_follows_no_links_and_never_raises(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("kept")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(tmp_path / "outside")
    (inside / "locked").mkdir(0)
    (inside / "locked").chmod(0)
    folders.remove(str(inside))
    folders.remove(str(inside))
    folders.remove(str(tmp_path / "outside" / "file"))
    assert os.listdir(tmp_path) == ["outside"] and (tmp_path / "outside" / "file").read_text() == "kept"
