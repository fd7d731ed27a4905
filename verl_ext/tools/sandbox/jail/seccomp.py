"""seccomp: which system calls a program may make. Two filters, in the kernel's classic BPF.

`allow` lists the calls that Python needs to compute and to use its folder; all others fail with EPERM, including calls
of future kernels. Where a call can do more, its arguments are checked. `count` makes the kernel ask the server about
each new thread and file, so that the server can count them: there is no resource limit for that.

A filter sees registers. It cannot read the memory they point to, so paths are left to landlock.py. https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Iterable
from typing import NamedTuple

from .kernel import Unavailable, call
from .syscalls import ARCHITECTURE, MACHINE, MACHINES, NUMBERS

ALLOWED = """
read write readv writev pread64 pwrite64 close close_range lseek dup dup2 dup3 pipe sendfile ftruncate fsync
fdatasync fadvise64 fstat newfstatat stat lstat statx access faccessat faccessat2 getdents64 getcwd chdir fchdir mkdir
mkdirat rmdir unlink unlinkat rename renameat umask
poll ppoll select pselect6 epoll_create1 epoll_ctl epoll_wait epoll_pwait eventfd2 recvfrom shutdown
mmap munmap mprotect mremap madvise msync brk
set_robust_list rseq sched_yield getcpu exit exit_group restart_syscall
gettid getpid getppid getuid geteuid getgid getegid uname sysinfo getrusage getrandom
rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack pause
alarm setitimer getitimer nanosleep gettimeofday time times
""".split()
COUNTED = ("clone", "mkdir", "mkdirat")  # and openat where it makes a file

O_TMPFILE, O_PATH = 0o20000000, 0o10000000
# The flags that pthread_create of glibc and of musl pass to clone: for a thread, never for a process.
THREAD = (0x3D0F00, 0x7D0F00)
AF_UNIX, SOCK_STREAM, SOCK_FLAGS = 1, 1, 0o2004000  # close on exec, not blocking
PR_SET_NAME = 15
# isatty, terminal size, blocking, close on exec. None that types into a terminal or sends signals.
IOCTLS = (0x5401, 0x5413, 0x5421, 0x5451, 0x5450)
# Duplicates and flags. Not F_SETOWN and F_SETSIG, which make the kernel signal any process of the user, and no locks:
# programs could ask for each other's on /dev/null and on the library.
FCNTLS = (0, 1, 2, 3, 4, 1030, 1032)
# Waits and wakes within the process. Without this flag, a page of the library is a bell between programs.
FUTEX_PRIVATE = 128
# The clocks of linux/time.h. Negative numbers are those of other processes.
CLOCKS = tuple(range(12))

_KILL, _ERRNO, _NOTIFY, _ALLOW = 0x80000000, 0x00050000, 0x7FC00000, 0x7FFF0000
_LOAD, _AND, _EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_AT_NUMBER, _AT_ARCHITECTURE, _AT_ARGUMENTS = 0, 4, 16
_EPERM, _ENOSYS = 1, 38
_ANY_BIT = 0xFFFFFFFF
# seccomp(2), and the ioctls of its listener with their structures: linux/seccomp.h
_SET_MODE_FILTER, _NEW_LISTENER = 1, 1 << 3
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1


class Check(NamedTuple):
    """Checks that the lower (`upper`: upper) 32 bits of an argument, under `mask`, are one of `values`."""

    argument: int
    values: tuple[int, ...]
    mask: int = _ANY_BIT
    upper: bool = False


def checks(pid: int) -> dict[str, list[Check]]:
    """Calls that process `pid` may make if all their checks hold."""
    access = os.O_ACCMODE | os.O_TRUNC
    # Landlock needs only the right to read for opening with O_RDONLY | O_TRUNC, and none for O_PATH.
    opens = (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_TRUNC)
    return {
        "openat": [Check(2, opens, access), Check(2, (0,), O_TMPFILE | O_PATH)],
        "clone": [Check(0, THREAD)],
        "kill": [Check(0, (pid,))],
        "tgkill": [Check(0, (pid,))],
        "prlimit64": [Check(0, (0, pid))],
        "ioctl": [Check(1, IOCTLS)],
        "fcntl": [Check(1, FCNTLS)],
        "futex": [Check(1, (FUTEX_PRIVATE,), FUTEX_PRIVATE)],
        "sched_getaffinity": [Check(0, (0, pid))],
        **dict.fromkeys(("clock_gettime", "clock_getres", "clock_nanosleep"), [Check(0, CLOCKS)]),
        "prctl": [Check(0, (PR_SET_NAME,))],
        "pipe2": [Check(1, (0,), _ANY_BIT ^ SOCK_FLAGS)],
        # asyncio wakes itself up with such a pair, which is connected to itself and never to an address.
        "socketpair": [Check(0, (AF_UNIX,)), Check(1, (SOCK_STREAM,), _ANY_BIT ^ SOCK_FLAGS)],
        "sendto": [Check(4, (0,)), Check(4, (0,), upper=True)],
    }


def allow(pid: int) -> bytes:
    """The filter of a program that runs as process `pid`."""
    code = _start()
    for name in ALLOWED:
        if name in NUMBERS:  # ARM64 lacks the older calls
            code += _case(name, [_op(_RETURN, _ALLOW)])
    for name, conditions in checks(pid).items():
        tests = [op for condition in conditions for op in _require(condition)]
        code += _case(name, [*tests, _op(_RETURN, _ALLOW)])
    code += _case(
        "clone3", [_op(_RETURN, _ERRNO | _ENOSYS)]
    )  # its flags are in memory, not in registers; glibc falls back to clone
    return b"".join([*code, _op(_RETURN, _ERRNO | _EPERM)])


def count() -> bytes:
    """The filter that makes the kernel ask the server about COUNTED calls and new files."""
    code = _start()
    for name in COUNTED:
        if name in NUMBERS:
            code += _case(name, [_op(_RETURN, _NOTIFY)])
    flags = [_op(_LOAD, _AT_ARGUMENTS + 8 * 2), _op(_AND, os.O_CREAT)]
    code += _case("openat", [*flags, _op(_EQUAL, 0, 1, 0), _op(_RETURN, _NOTIFY), _op(_RETURN, _ALLOW)])
    return b"".join([*code, _op(_RETURN, _ALLOW)])


def install(code: bytes, listen: bool = False) -> int:
    """Install a filter permanently. listen: return the descriptor at which its questions arrive.

    Raises:
        Unavailable: syscalls.py does not know the processor, or the kernel refuses.
    """
    if not ARCHITECTURE:
        raise Unavailable(f"seccomp filters are written for {sorted(MACHINES)}; this machine is {MACHINE}")
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("=HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    try:
        return call("seccomp", _SET_MODE_FILTER, _NEW_LISTENER if listen else 0, program)
    except OSError as error:
        raise Unavailable(
            f"seccomp refuses a filter ({error}); it keeps programs from using sockets and other processes. It needs "
            "Linux 5.5 or later with CONFIG_SECCOMP_FILTER, and in a container a runtime that lets it through and has "
            "no listener of its own (not gVisor, not sysbox)"
        ) from error


def question(listener: int) -> tuple[int, int] | None:
    """(id, system call) of the next question at `listener`, which must have one; None: its process has died."""
    notification = bytearray(80)
    try:
        fcntl.ioctl(listener, _RECEIVE, notification)
    except OSError:
        return None
    identity, number = struct.unpack_from("=Q8xi", notification)
    return identity, number


def allow_call(listener: int, identity: int) -> None:
    """Answer a question: the call may continue."""
    try:
        fcntl.ioctl(listener, _SEND, struct.pack("=QqiI", identity, 0, 0, _CONTINUE))
    except OSError:  # the process has died
        pass


def _op(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)


def _start() -> list[bytes]:
    """Load the number of the call; a call of another architecture (32 bits) kills the program."""
    return [
        _op(_LOAD, _AT_ARCHITECTURE), _op(_EQUAL, ARCHITECTURE, 1, 0), _op(_RETURN, _KILL), _op(_LOAD, _AT_NUMBER)
    ]  # fmt: skip


def _case(name: str, body: list[bytes]) -> list[bytes]:
    return [_op(_EQUAL, NUMBERS[name], 0, len(body)), *body]


def _require(check: Check) -> Iterable[bytes]:
    """Continue if the check holds, else EPERM."""
    yield _op(_LOAD, _AT_ARGUMENTS + 8 * check.argument + (4 if check.upper else 0))
    yield _op(_AND, check.mask)
    for left, value in zip(range(len(check.values), 0, -1), check.values, strict=True):
        yield _op(_EQUAL, value, left, 0)
    yield _op(_RETURN, _ERRNO | _EPERM)
