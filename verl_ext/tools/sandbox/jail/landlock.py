"""Landlock: which files a process may open, list, make and remove. It needs no privileges, and holds for root, too.

Only rights of its first version (Linux 5.13) are used, so that all kernels behave alike. They do not cover truncating
without opening for writing, changing modes, owners and times, signals, and sockets; seccomp.py forbids these. Neither
hides that a path exists: `stat` is allowed. https://docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping

from .kernel import Unavailable, call

WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 5
MAKE_DIR, MAKE_REG = 1 << 7, 1 << 8
ALL = (1 << 13) - 1  # of version 1
READ = READ_FILE | READ_DIR
# Without links, pipes, sockets and devices.
USE = READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG
RULE_PATH_BENEATH = 1


def restrict(rights: Mapping[int, int]) -> None:
    """Limit the rights on files of this process and its children to these. Rights lost before stay lost.

    Args:
        rights: descriptor of a folder or file, opened with O_PATH -> rights on it and on everything below it.

    Raises:
        Unavailable: this kernel has no Landlock, or it is off.
    """
    try:
        ruleset = call("landlock_create_ruleset", struct.pack("=Q", ALL), 8, 0)
    except OSError as error:
        raise Unavailable(
            f"Landlock is not available ({error}); it locks programs out of all files. It needs Linux 5.13 or later "
            f"(this is {os.uname().release}) with `landlock` among /sys/kernel/security/lsm (boot parameter lsm=), and "
            "in a container a runtime that lets it through (Docker 20.10.18 or later; not gVisor)"
        ) from error
    try:
        for descriptor, allowed in rights.items():
            rule = struct.pack("=Qi", allowed, descriptor)
            call("landlock_add_rule", ruleset, RULE_PATH_BENEATH, rule, 0)
        call("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
