"""Runs the training command in a folder of its own and reads the logs and checkpoints that it writes."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from verl_ext.engine import preload
from verl_ext.observe.runlog import NAME, read_log
from verl_ext.observe.trajectory_files import read_records

# Small enough that a run is mostly start-up: 8 questions a step, 16 to validate.
SMALL = ["data.train_batch_size=8", "data.val_max_samples=16", "trainer.save_freq=2", "trainer.test_freq=2"]
# These metrics differ between equal runs: durations, and what is computed from them.
TIMED = ("timing", "perf/", "tokens_per_second", "/seconds")
# The file of watched.py.
WATCHED = "watched.jsonl"


def command(*overrides: str, recipe: str = "mhgpo_tiny") -> list[str]:
    """The training command with the small sizes."""
    return [sys.executable, "-m", "verl.trainer.main_ppo", f"+recipe={recipe}", *SMALL, *overrides]


# One thread per process, because tests share the machine. The repository is importable, for its examples.
SETTINGS = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(Path(__file__).parents[2])}


@functools.cache
def preloaded() -> subprocess.Popen[bytes]:
    """The process from which the workers of all these runs are forked, which saves ten seconds a run."""
    return preload.launch(os.environ | SETTINGS)


def environment(shared: bool = True) -> dict[str, str]:
    """The environment of a run; `shared`: its workers are forks of `preloaded`, not of a process of its own."""
    return os.environ | SETTINGS | ({preload.SHARED: preload.address_of(preloaded())} if shared else {})


def run(folder: Path, *overrides: str, recipe: str = "mhgpo_tiny", timeout: int = 500, shared: bool = True) -> str:
    """Run to the end and return the output. `shared`: see `environment`.

    Raises:
        AssertionError: a non-zero exit, with the end of the output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        command(*overrides, recipe=recipe),
        cwd=folder,
        env=environment(shared),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def run_and_kill(
    folder: Path, *overrides: str, after_step: int, saved: bool = False, recipe: str = "mhgpo_tiny", timeout: int = 500
) -> None:
    """Start the command and kill -9 its process group as soon as its log holds `after_step`.

    Args:
        saved: and as soon as the checkpoint of that step is complete, which follows the log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    complete = folder / "runs" / recipe / f"global_step_{after_step}" / "complete"
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
        while not any(entry["step"] >= after_step for entry in entries(folder, recipe)) or (
            saved and not complete.exists()
        ):
            assert process.poll() is None, (folder / "killed.log").read_text()[-6000:]
            assert time.time() < deadline, "the run did not get there"
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_again_from(
    step: int, whole: Path, folder: Path, *overrides: str, recipe: str = "mhgpo_tiny", tracker: str | None = None
) -> str:
    """Copy a finished run to `folder`, remove its checkpoints after `step`, and start the same command there.

    What the run wrote after `step` beside its checkpoints (logs, memories) stays, as after a kill. `tracker` is the
    content of the file that names the last checkpoint; None: `step`.
    """
    shutil.copytree(whole, folder, dirs_exist_ok=True)
    place = folder / "runs" / recipe
    for checkpoint in place.glob("global_step_*"):
        if int(checkpoint.name.rpartition("_")[2]) > step:
            shutil.rmtree(checkpoint)
    (place / "latest_checkpointed_iteration.txt").write_text(str(step) if tracker is None else tracker)
    return run(folder, *overrides, recipe=recipe)


def entries(folder: Path, experiment: str = "mhgpo_tiny") -> list[dict[str, Any]]:
    """Log entries of a run."""
    return read_log(folder / "runs" / experiment / NAME)


def steps(folder: Path, experiment: str = "mhgpo_tiny") -> list[dict[str, Any]]:
    """Metrics of the training steps of a run, first to last."""
    return [entry["metrics"] for entry in entries(folder, experiment) if entry["step"] > 0]


def lasting(entry: dict[str, Any]) -> dict[str, Any]:
    """Metrics of an entry without those that depend on the clock."""
    return {name: value for name, value in entry["metrics"].items() if not any(part in name for part in TIMED)}


def last_metrics(folder: Path, experiment: str = "mhgpo_tiny") -> dict[str, Any]:
    """`lasting` metrics of the last step, without how many programs a sandbox had in its cache."""
    found = lasting(entries(folder, experiment)[-1])
    return {name: value for name, value in found.items() if "tools/run_python" not in name}


def records(folder: Path, experiment: str = "mhgpo_tiny") -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The trajectory log of a run: (records, their calls, each with phase, step and question of its record)."""
    found = list(read_records(folder / "runs" / experiment))
    heads = [{name: record[name] for name in ("phase", "step", "question")} for record in found]
    return found, [head | call for head, record in zip(heads, found, strict=True) for call in record["calls"]]


def seen(folder: Path, experiment: str = "mhgpo_tiny") -> list[dict[str, Any]]:
    """What a run of a workflow of watched.py has recorded, an update each."""
    return [json.loads(line) for line in (folder / "runs" / experiment / WATCHED).read_text().splitlines()]


def saved(folder: Path, step: int, name: str, experiment: str = "mhgpo_tiny") -> Any:
    """A file that torch saved in a run's checkpoint of `step`."""
    return torch.load(folder / "runs" / experiment / f"global_step_{step}" / name, weights_only=False)


def weights(folder: Path, step: int, experiment: str = "mhgpo_tiny") -> dict[str, torch.Tensor]:
    """The policy's weights in a checkpoint of a run on one rank, by name."""
    state = saved(folder, step, "actor/model_world_size_1_rank_0.pt", experiment)
    return {name: getattr(weight, "_local_tensor", weight) for name, weight in state.items()}


def concerns(page: str) -> list[str]:
    """What the doctor's page says is to be looked at, but for what agents write: some models here are untrained."""
    return [line for line in page.partition("To look at")[2].splitlines() if line and "last outputs" not in line]
