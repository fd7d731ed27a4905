"""Memory that this process has freed and its C library keeps.

glibc keeps much of what is freed for the next allocation, and pieces of many sizes make it keep more with every step.
In training, engine and trainer take turns, so what one keeps is memory that the other lacks.
"""

from __future__ import annotations

import ctypes

# None where the C library has no such function (macOS, musl).
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back() -> None:
    """Give freed memory back to the system. With 135M parameters: 0.1 to 0.2 s, and 2 to 3 GB after an update."""
    if _trim is not None:
        _trim(0)
