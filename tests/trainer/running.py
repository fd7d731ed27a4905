"""Runs the real command in a folder of its own and reads what it left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from verl_ext.observe.runlog import NAME, read_log

# Small enough that a run is mostly start-up: 8 questions a step, 16 to validate.
SMALL = ["data.train_batch_size=8", "data.val_max_samples=16", "trainer.save_freq=2", "trainer.test_freq=2"]
# Different in every run by nature: durations, and what derives from them.
TIMED = ("timing", "perf/", "tokens_per_second", "/seconds")


def command(*overrides: str, recipe: str = "mhgpo_tiny") -> list[str]:
    """The main command with the small sizes."""
    return [sys.executable, "-m", "verl.trainer.main_ppo", f"+recipe={recipe}", *SMALL, *overrides]


def environment() -> dict[str, str]:
    """One thread per process: the tests share the machine. The repository is importable, for its examples."""
    settings = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(Path(__file__).parents[2])}
    return os.environ | settings


def run(folder: Path, *overrides: str, recipe: str = "mhgpo_tiny", timeout: int = 500) -> str:
    """Run to the end; return the output.

    Raises:
        AssertionError: a non-zero exit, with the end of the output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        command(*overrides, recipe=recipe),
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def run_and_kill(
    folder: Path, *overrides: str, after_step: int, recipe: str = "mhgpo_tiny", timeout: int = 500
) -> None:
    """Start the command and kill -9 everything of it as soon as its log holds `after_step`."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "killed.log", "w") as log:
        process = subprocess.Popen(
            command(*overrides, recipe=recipe),
            cwd=folder,
            env=environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        deadline = time.time() + timeout
        while not any(entry["step"] >= after_step for entry in entries(folder, recipe)):
            assert process.poll() is None, (folder / "killed.log").read_text()[-6000:]
            assert time.time() < deadline, "the run did not get there"
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def entries(folder: Path, experiment: str = "mhgpo_tiny") -> list[dict[str, Any]]:
    """Log entries of a run."""
    return read_log(folder / "runs" / experiment / NAME)


def lasting(entry: dict[str, Any]) -> dict[str, Any]:
    """Metrics of an entry without what depends on the clock."""
    return {name: value for name, value in entry["metrics"].items() if not any(part in name for part in TIMED)}
