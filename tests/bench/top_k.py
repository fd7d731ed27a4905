"""(n) What JoyAgents-R1's top K saves: the actor's update over the rows that it keeps (top_k_program.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

QUESTIONS, REPEATS = 48, 3


def run(questions: int = QUESTIONS, repeats: int = REPEATS) -> list[str]:
    """Lines, from a process of its own, which verl's process group wants.

    Raises:
        RuntimeError: the process failed.
    """
    command = [sys.executable, "-m", "tests.bench.top_k_program", str(questions), str(repeats)]
    settings = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=Path(__file__).parents[2], env=settings, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the update failed:\n{done.stderr[-3000:]}")
    return [line for line in done.stdout.splitlines() if line.startswith("  K = ")]


if __name__ == "__main__":
    print("\n".join(run()))
