"""What all reports share: Markdown tables, the machine and the code in words."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from difflib import get_close_matches
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


def docs_page(name: str) -> str:
    """A page of docs/ as it can be opened from the working folder: `docs/metrics.md` in the clone, else its path."""
    page = Path(__file__).parents[1] / "docs" / name
    return f"docs/{name}" if page.parents[1] == Path.cwd() or not page.exists() else str(page)


def program(name: str) -> str:
    """A program of the running environment as a user would type it: by its name if PATH leads to it, else by its path.

    The path is relative if it is below the working folder, e.g. `.venv/bin/verl_ext`.
    """
    path = Path(sys.executable).with_name(name)
    known = shutil.which(name)
    if not path.exists() or (known and os.path.samefile(known, path)):
        return name
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


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
    (meant,) = get_close_matches(headline, quantities, n=1, cutoff=0)
    problem = f"The workflow's headline is {headline!r}, but its reward reports {', '.join(quantities)}."
    return [f"{problem} Remedy: headline = {meant!r}"]
