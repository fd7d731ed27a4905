"""Hostile programs against the kernel: no sockets, no calls past Python, and what the filters say of each call."""

from __future__ import annotations

import os
import re
import socket
import struct
from pathlib import Path

import pytest

from tests.tools.sandboxing import sandbox
from tests.tools.test_sandbox_files import ATTEMPT
from verl_ext.tools.sandbox.jail import seccomp
from verl_ext.tools.sandbox.jail.syscalls import ARCHITECTURE, MACHINE, MACHINES, NUMBERS

PID = 4321
ALLOW, EPERM, ENOSYS, NOTIFY, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x7FC00000, 0x80000000


@pytest.fixture(scope="module")
def python():
    with sandbox(cpu_s=10, wall_s=120.0) as room:
        yield room


SOCKETS = [
    "attempt(socket.socket)",
    "attempt(socket.socket, socket.AF_INET, socket.SOCK_DGRAM)",
    "attempt(socket.socket, socket.AF_INET6)",
    "attempt(socket.socket, socket.AF_UNIX)",
    "attempt(socket.socket, socket.AF_UNIX, socket.SOCK_DGRAM)",
    "attempt(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "attempt(socket.socket, socket.AF_PACKET, socket.SOCK_RAW)",
    "attempt(socket.socket, 40, socket.SOCK_STREAM)",  # AF_VSOCK: to the host of a virtual machine
    "attempt(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM)",
    "attempt(socket.socketpair, socket.AF_UNIX, socket.SOCK_SEQPACKET)",
    "attempt(socket.create_connection, ('127.0.0.1', PORT), 1)",
    "a, b = socket.socketpair(); attempt(a.connect, '\\0abstract')",
    "a, b = socket.socketpair(); attempt(a.sendto, b'x', '\\0abstract')",
    "a, b = socket.socketpair(); attempt(a.bind, '\\0mine'); attempt(a.listen)",
    "a, b = socket.socketpair(); attempt(socket.send_fds, a, [b'x'], [0])",
]


def test_sockets(python):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        begin = f"{ATTEMPT}\nimport socket\nPORT = {listening.getsockname()[1]}\n"
        answers = python.together(begin + program for program in SOCKETS)
    for program, answer in zip(SOCKETS, answers, strict=True):
        assert answer and set(answer.split()) == {"PermissionError"}, program


@pytest.mark.skipif(MACHINE != "x86_64", reason="numbers of x86-64")
def test_calls_past_python(python):
    """Every system call there is but the allowed ones, with arguments that do nothing: each is refused."""
    allowed = {NUMBERS[name] for name in (*seccomp.ALLOWED, *seccomp.checks(1))}
    allowed |= {335, 336}  # of uprobes; newer kernels let them pass any filter, and end a process that calls them
    program = f"""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        seen = set()
        for number in set(range(470)) - {{*{sorted(allowed)}}}:
            ctypes.set_errno(0)
            seen.add((libc.syscall(number, -1, 0, 0, 0, 0, 0), ctypes.get_errno()))
        print(sorted(seen))
    """
    assert python(program) == "[(-1, 1), (-1, 38)]"  # 38, unknown: clone3 alone


@pytest.mark.skipif(MACHINE != "x86_64", reason="machine code of x86-64")
def test_machine_code(python):
    program = """
        import ctypes, mmap, os
        memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        memory.write({!r})
        call = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
        print(call() == os.getpid())
    """
    codes = {
        b"\xb8\x27\x00\x00\x00\x0f\x05\xc3": "True",  # getpid
        b"\xb8\x27\x00\x00\x40\x0f\x05\xc3": "False",  # getpid of x32: refused
        b"\xb8\x14\x00\x00\x00\xcd\x80\xc3": "[The program crashed (SIG",  # int 0x80: getpid of 32 bits
    }
    for answer, expected in zip(python.together(map(program.format, codes)), codes.values(), strict=True):
        assert answer.startswith(expected)


def judged(code: bytes, name: str | int, *arguments: int, architecture: int = ARCHITECTURE) -> int:
    """What a filter says of a call: an interpreter of the instructions that seccomp.py uses."""
    number = NUMBERS[name] if isinstance(name, str) else name
    data = struct.pack("=iIQ6Q", number, architecture, 0, *(a % 2**64 for a in arguments), *[0] * (6 - len(arguments)))
    value, at = 0, 0
    while True:
        operation, then, otherwise, k = struct.unpack_from("=HBBI", code, 8 * at)
        at += 1
        if operation == 0x20:
            value = struct.unpack_from("=I", data, k)[0]
        elif operation == 0x54:
            value &= k
        elif operation == 0x15:
            at += then if value == k else otherwise
        elif operation == 0x06:
            return k
        else:
            raise AssertionError(f"unknown instruction {operation:#x}")


@pytest.mark.skipif(MACHINE not in MACHINES, reason="an unknown processor")
@pytest.mark.parametrize(
    ("call", "verdict"),
    [
        (("read",), ALLOW),
        (("exit_group",), ALLOW),
        (("clone3",), ENOSYS),
        (("seccomp",), EPERM),
        (("landlock_restrict_self",), EPERM),
        (("capset",), EPERM),
        ((100_000,), EPERM),
        (("kill", PID, 9), ALLOW),
        (("kill", PID + 1, 0), EPERM),
        (("kill", -1, 9), EPERM),
        (("kill", 0, 9), EPERM),
        (("kill", PID + 2**32, 9), ALLOW),  # the kernel takes the lower half, an int
        (("tgkill", PID, PID + 7, 9), ALLOW),
        (("tgkill", PID + 7, PID, 9), EPERM),
        (("prlimit64", 0, 7, 0, 0), ALLOW),
        (("prlimit64", PID + 1, 7, 0, 0), EPERM),
        (("clone", 0x3D0F00), ALLOW),
        (("clone", 0x01200011), EPERM),  # fork
        (("clone", 0x3D0F00 | 0x10000000), EPERM),  # a thread in a new user namespace
        (("openat", -100, 0, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC), ALLOW),
        (("openat", -100, 0, os.O_RDONLY), ALLOW),
        (("openat", -100, 0, os.O_RDONLY | os.O_TRUNC), EPERM),
        (("openat", -100, 0, os.O_ACCMODE), EPERM),
        (("openat", -100, 0, os.O_PATH), EPERM),
        (("openat", -100, 0, os.O_RDWR | os.O_TMPFILE), EPERM),
        (("fcntl", 1, 3), ALLOW),
        (("fcntl", 1, 6, 0), EPERM),  # a lock, which others can see
        (("fcntl", 1, 8, 1), EPERM),
        (("futex", 0, 128 | 9), ALLOW),
        (("futex", 0, 1, 1), EPERM),  # could wake another process
        (("sched_getaffinity", 0), ALLOW),
        (("sched_getaffinity", PID + 1), EPERM),
        (("clock_gettime", 1), ALLOW),
        (("clock_gettime", ~(PID + 1) << 3 | 2), EPERM),  # the clock of another process
        (("fcntl", 1, 10, 9), EPERM),
        (("fcntl", 1, 15, 0), EPERM),
        (("ioctl", 1, 0x5401), ALLOW),
        (("ioctl", 1, 0x5412), EPERM),
        (("ioctl", 1, 0x5452), EPERM),
        (("prctl", 15), ALLOW),
        (("prctl", 1, 0), EPERM),
        (("prctl", 38, 0), EPERM),
        (("pipe2", 0, os.O_CLOEXEC), ALLOW),
        (("pipe2", 0, os.O_EXCL), EPERM),  # a notification queue
        (("socketpair", 1, 1 | 0o2000000, 0), ALLOW),
        (("socketpair", 1, 2, 0), EPERM),
        (("socketpair", 2, 1, 0), EPERM),
        (("sendto", 3, 0, 1, 0, 0), ALLOW),
        (("sendto", 3, 0, 1, 0, 0x7F00_0000_0000), EPERM),
        (("sendto", 3, 0, 1, 0, 0x1000), EPERM),
    ],
)
def test_the_filter(call, verdict):
    assert judged(seccomp.allow(PID), *call) == verdict


@pytest.mark.skipif(MACHINE not in MACHINES, reason="an unknown processor")
def test_the_filter_and_other_architectures():
    assert judged(seccomp.allow(PID), "read", architecture=0x40000003) == KILL
    assert judged(seccomp.count(), "read", architecture=0x40000003) == KILL
    if MACHINE == "x86_64":
        assert judged(seccomp.allow(PID), NUMBERS["read"] | 0x40000000) == EPERM  # x32


@pytest.mark.skipif(MACHINE not in MACHINES, reason="an unknown processor")
def test_what_is_counted():
    code = seccomp.count()
    assert judged(code, "clone", 0x3D0F00) == judged(code, "mkdirat", -100, 0, 0o700) == NOTIFY
    assert judged(code, "openat", -100, 0, os.O_WRONLY | os.O_CREAT) == NOTIFY
    assert judged(code, "openat", -100, 0, os.O_WRONLY) == judged(code, "read") == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_filters_fit_the_jumps_of_bpf(machine, monkeypatch):
    """For both processors: a jump holds 8 bits, a filter 4,096 instructions; `struct` would raise on the first."""
    architecture, numbers = MACHINES[machine]
    monkeypatch.setattr(seccomp, "ARCHITECTURE", architecture)
    monkeypatch.setattr(seccomp, "NUMBERS", numbers)
    for code in (seccomp.allow(PID), seccomp.count()):
        assert len(code) % 8 == 0 and len(code) // 8 < 4096


@pytest.mark.parametrize(
    ("machine", "header"),
    [("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "/usr/include/asm-generic/unistd.h")],
)
def test_numbers_are_the_kernel_s(machine, header):
    if not Path(header).exists():
        pytest.skip(f"no {header}")
    lines = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\b", Path(header).read_text())
    official = {name: int(number) for name, number in lines}
    official.setdefault("newfstatat", official.get("fstatat", -1))
    numbers = MACHINES[machine][1]
    assert {name: official[name] for name in numbers} == numbers
    unknown = {*seccomp.ALLOWED, *seccomp.checks(1)} - set(MACHINES["x86_64"][1])
    assert not unknown
    if machine == "aarch64":  # what is missing there does not exist there
        assert not {name for name in MACHINES["x86_64"][1] if name in official and name not in numbers}
