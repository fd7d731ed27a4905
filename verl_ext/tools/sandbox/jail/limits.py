"""Limits of a program."""

from __future__ import annotations

from dataclasses import dataclass

OPEN_FILES = 64
STACK_BYTES = 8 << 20
# Memory beyond the limit, for the message that it was reached.
SPARE_BYTES = 16 << 20


@dataclass(frozen=True)
class Limits:
    """Limits of one program. cpu_s, wall_s, threads and files kill the program; memory_mb and file_mb raise inside it.

    cpu_s: seconds of processor time; an integer, because the kernel counts whole seconds.
    wall_s: seconds since the fork; three times as many for a program that has been busy, so that load decides nothing.
    memory_mb: address space, including about 40 MB of Python itself.
    threads: threads started, including ended ones.
    files: files and folders made, including removed ones, and files truncated on opening.
    file_mb: length of one file.
    """

    cpu_s: int = 2
    wall_s: float = 10.0
    memory_mb: int = 512
    threads: int = 64
    files: int = 64
    file_mb: int = 4
