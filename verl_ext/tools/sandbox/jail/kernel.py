"""System calls without a function in Python."""

from __future__ import annotations

import ctypes
import os
import signal
import struct

from .syscalls import NUMBERS

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 4, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
CAPABILITY_VERSION = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


class Unavailable(Exception):
    """This machine lacks a protection. The message has its name, the reason and the remedy."""


def call(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """Make the system call `name`; bytes and arrays are passed by address.

    Raises:
        OSError: it failed, or this processor is unknown (ENOSYS).
    """
    if name not in NUMBERS:
        raise OSError(38, f"{name}: system calls of this processor ({os.uname().machine}) are unknown")
    given = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result = _libc.syscall(ctypes.c_long(NUMBERS[name]), *given)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result


def no_new_privileges() -> None:
    """Forbid this process and its children to gain privileges (setuid programs). Landlock and seccomp require it."""
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def drop_capabilities() -> None:
    """Give up every capability; permanent after `no_new_privileges`."""
    call("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    call("capset", struct.pack("=Ii", CAPABILITY_VERSION, 0), bytes(24))


def no_core_dumps() -> None:
    """Forbid core files and crash handlers to read the memory of a crashed program."""
    call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent (a pid) ends. Changing the user id would undo this."""
    call("prctl", PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it had ended before
        os._exit(1)
