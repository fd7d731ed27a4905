"""What a program may use."""

from __future__ import annotations

from dataclasses import dataclass

OPEN_FILES = 64
STACK_BYTES = 8 << 20
# Beyond the memory limit, to say that it was reached.
SPARE_BYTES = 16 << 20


@dataclass(frozen=True)
class Limits:
    """Limits of one program. It is ended at the first two, `threads` and `files`; the others raise in it.

    cpu_s: seconds of processor time, whole ones: the kernel counts no others.
    wall_s: seconds from the fork.
    memory_mb: address space, Python's own 40 MB among it.
    threads: threads started, ended ones included.
    files: files and folders made, removed ones included, and files opened to be written anew.
    file_mb: length of a file.
    """

    cpu_s: int = 2
    wall_s: float = 10.0
    memory_mb: int = 512
    threads: int = 64
    files: int = 64
    file_mb: int = 4
