"""What all reports share: Markdown tables, the machine and the code in words."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], words: int | None = None) -> list[str]:
    """The lines of a table whose columns also stand in line as plain text.

    The first `words` columns (None: all) are text, to the left; the others numbers, to the right. White space in a cell
    becomes single spaces, and a pipe cannot end it.
    """
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    forms = [f"{'<' if words is None or number < words else '>'}{width}" for number, width in enumerate(widths)]
    rules = ["-" * (width + 1) + "-:"[form[0] == ">"] for width, form in zip(widths, forms, strict=True)]
    lines = ["| " + " | ".join(map(format, row, forms)) + " |" for row in cells]
    return [lines[0], f"|{'|'.join(rules)}|", *lines[1:]]


def in_words(score: str) -> str:
    """A score's name for people: F1, EM, accuracy, tool calls."""
    return score.upper() if len(score) <= 2 else score.replace("_", " ")


def processor() -> str:
    """The processor's name as the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def machine() -> str:
    """E.g. `AMD EPYC 7763, 2 cores, 23 GiB`."""
    return f"{processor()}, {os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB"


def commit() -> str:
    """What `git describe` says of the clone that this code is in, e.g. `a1b2c3d` or `a1b2c3d-dirty`."""
    command, here = ["git", "describe", "--always", "--dirty"], Path(__file__).parent
    try:
        return subprocess.run(command, cwd=here, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown (not a clone)"


def no_headline(quantities: Sequence[str], headline: str) -> list[str]:
    """What to say where a workflow's headline is none of the quantities that its reward reports; empty where it is."""
    if not quantities or headline in (*quantities, "reward"):
        return []
    return [f"The workflow's headline is {headline!r}, but its reward reports {', '.join(quantities)}."]
