"""Seconds until a newcomer's mistakes are told: each is one edit of a system that works, or one wrong override.

    python -m tests.bench.mistakes                       # all; those that train take a minute each
    python -m tests.bench.mistakes --quick               # only those that are told before Ray starts
    python -m tests.bench.mistakes no_await blocking_tool
    python -m tests.bench.mistakes --folder /tmp/mistakes   # keeps the output, and skips what is there already

Every mistake is a command in a fresh process. It prints a Markdown table: seconds until the line that tells the
mistake, seconds until the process ended, its exit status, and that line.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.bench.mistakes_made import MISTAKES, RECIPE, ROWS, SYSTEM, Mistake
from verl_ext.reports import machine, markdown

# Small enough that a run is mostly start-up.
SMALL = ("trainer.total_training_steps=2", "data.train_batch_size=8", "data.val_max_samples=8", "trainer.save_freq=-1")
# Seconds after which a run is killed.
LIMIT = 240.0


@dataclass
class Told:
    """What a mistake led to. `after` is None if nothing told it."""

    name: str
    made: str
    after: float | None
    ended: float
    status: int
    line: str


def write_system(folder: Path, mistake: Mistake) -> None:
    """Write the system with the mistake in it, its recipe and its data.

    Raises:
        ValueError: the mistake replaces a text that the system or its recipe does not have.
    """
    system, recipe = SYSTEM, RECIPE
    for old, new in mistake.edits:
        if old not in system + recipe:
            raise ValueError(f"{mistake.name} replaces {old!r}, which is not in the system")
        system, recipe = system.replace(old, new), recipe.replace(old, new)
    (folder / "recipe").mkdir(parents=True, exist_ok=True)
    (folder / "capitals.py").write_text(system)
    (folder / "recipe" / "capitals.yaml").write_text(recipe)
    pq.write_table(pa.Table.from_pylist(ROWS).select(mistake.columns), folder / "capitals.parquet")


def environment() -> dict[str, str]:
    """One thread per process, and output that is not held back."""
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "RAY_USAGE_STATS_ENABLED": "0"}


def command(mistake: Mistake) -> list[str]:
    """What the newcomer types."""
    base = ("--config-dir", ".", "+recipe=capitals", *SMALL) if mistake.recipe else ()
    return [sys.executable, "-m", "verl.trainer.main_ppo", *base, *mistake.overrides]


def make(mistake: Mistake, folder: Path) -> Told:
    """Make the mistake and wait for the end of the process, at most `LIMIT` seconds."""
    write_system(folder, mistake)
    start, told = time.time(), None
    with open(folder / "output.txt", "w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command(mistake),
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        killer = threading.Timer(LIMIT, os.killpg, (process.pid, signal.SIGKILL))
        killer.start()
        line = ""
        for said in process.stdout or ():
            output.write(f"{time.time() - start:7.1f}  {said}")
            if told is None and re.search(mistake.told, said):
                told, line = time.time() - start, said.strip()
        status = process.wait()
        killer.cancel()
    return Told(mistake.name, mistake.made, told, time.time() - start, status, line)


def table(found: Sequence[Told]) -> list[str]:
    """A Markdown table of what was found."""
    rows = [
        [one.made, "never" if one.after is None else f"{one.after:.0f}", f"{one.ended:.0f}", str(one.status), said]
        for one in found
        for said in [one.line if len(one.line) <= 140 else f"{one.line[:139]}…"]
    ]
    return markdown(["mistake", "told after s", "ended after s", "exit", "the line that tells it"], rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Make the mistakes and print the table. Exit status 1: one of them was never told."""
    parser = argparse.ArgumentParser("python -m tests.bench.mistakes", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(one.name for one in MISTAKES)}")
    parser.add_argument("--quick", action="store_true", help="only those that are told before Ray starts")
    parser.add_argument("--folder", type=Path, help="keep the outputs here; a mistake that is there is not made again")
    arguments = parser.parse_args(argv)
    if unknown := set(arguments.names) - {one.name for one in MISTAKES}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; allowed: {', '.join(one.name for one in MISTAKES)}")
    chosen = [
        one
        for one in MISTAKES
        if (not arguments.names or one.name in arguments.names) and not (arguments.quick and one.trains)
    ]
    found = []
    with tempfile.TemporaryDirectory(prefix="mistakes") as temporary:
        folder = arguments.folder or Path(temporary)
        for mistake in chosen:
            kept = folder / mistake.name / "told.json"
            if not kept.exists():
                one = make(mistake, folder / mistake.name)
                kept.write_text(json.dumps(asdict(one)))
            found.append(Told(**json.loads(kept.read_text())))
            print(f"{mistake.name}: {found[-1].after and round(found[-1].after, 1)} s", file=sys.stderr, flush=True)
    print(f"{machine()}\n\n" + "\n".join(table(found)))
    return int(any(one.after is None for one in found))


if __name__ == "__main__":
    sys.exit(main())
