"""Ctrl-C at chosen moments of a real run: seconds until it has ended, its exit status, and whether its files are whole.

    python -m tests.bench.ctrlc [MOMENT …]

The moments are those in which a run does different things. A run is whole if every line of metrics.jsonl and of the
trajectory log can be read, each finished step has its questions in the log, and there is a learning curve.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.end_to_end.running import command, entries, environment, records
from tests.helpers import heed_signals
from verl_ext.trainer.interrupt import STATUS

# A run that has not ended by then hangs.
PATIENCE = 30.0
SETTINGS = ["trainer.save_freq=1", "trainer.test_freq=1", "trainer.total_training_steps=50"]
SETTINGS += ["mas.trajectory_log.train_questions=8", "mas.trajectory_log.files=100"]


class Result(NamedTuple):
    """Seconds from the signal to the end of the process; its exit status; processes left; what is not whole."""

    seconds: float
    status: int | None
    left: int
    lacks: list[str]


def blocking_search(**_: Any) -> Callable[..., Any]:
    """A tool that blocks its event loop."""

    async def search(queries: list[str]) -> None:
        Path("blocks").touch()
        time.sleep(1000)  # noqa: ASYNC251 as a user may write it

    return search


BLOCKS = f"mas.tools.search._target_={__name__ if __name__ != '__main__' else 'tests.bench.ctrlc'}.blocking_search"


def steps(folder: Path) -> int:
    """The last step in the run's log; -1 before the first validation."""
    return max((entry["step"] for entry in entries(folder)), default=-1)


def after_step(folder: Path, _: float) -> bool:
    """The first step has been logged: the rollouts of the second one begin."""
    return steps(folder) >= 1


def updating(folder: Path, _: float) -> bool:
    """The advantages of the first step are known, which its update follows."""
    return (1, "train") in logged(folder)


def testing(folder: Path, _: float) -> bool:
    """The first step has made its update some seconds ago, and is not logged before it has validated."""
    if not updating(folder, 0.0):
        return False
    time.sleep(3)
    return True


def saving(folder: Path, _: float) -> bool:
    """The first checkpoint has its folder; the tracker does not name it yet."""
    return (folder / "runs/mhgpo_tiny/global_step_1").exists()


def logged(folder: Path) -> set[tuple[int, str]]:
    """(step, phase) of the records of the trajectory log."""
    if not list((folder / "runs/mhgpo_tiny/trajectories").glob("*.jsonl")):
        return set()
    return {(line["step"], line["phase"]) for line in records(folder)[0]}


ALONE = ("trainer.test_freq=-1", "trainer.save_freq=-1")
MOMENTS: dict[str, tuple[Callable[[Path, float], bool], tuple[str, ...]]] = {
    "imports": (lambda folder, seconds: seconds > 5, ()),
    "start of Ray": (lambda folder, _: (folder / "runs/mhgpo_tiny").exists(), ()),
    "rollout": (after_step, ALONE),
    "update": (updating, ALONE),
    "save": (saving, ()),
    "validation": (testing, ("trainer.save_freq=-1", "data.val_max_samples=-1", "trainer.val_before_train=false")),
    "blocking tool": (lambda folder, _: (folder / "blocks").exists(), (BLOCKS,)),
}


def lacks(folder: Path) -> list[str]:
    """What an interrupted run should have and has not."""
    place = folder / "runs/mhgpo_tiny"
    finished = [entry["step"] for entry in entries(folder)]
    found = [
        f"the end of {path.name}"
        for path in [*place.glob("metrics.jsonl"), *place.glob("trajectories/*.jsonl")]
        if (text := path.read_text()) and not text.endswith("\n")
    ]
    there = {step for step, _ in logged(folder)}
    found += [f"the trajectories of step {step}" for step in finished if step not in there]
    if finished and not (place / "learning_curve.png").exists():
        found.append("the learning curve")
    return found


def interrupt(folder: Path, reached: Callable[[Path, float], bool], overrides: Sequence[str]) -> Result:
    """Start a run in `folder`, send SIGINT once a moment is reached, and look at what it leaves."""
    folder.mkdir(parents=True)
    with open(folder / "output.txt", "w") as output:
        given: dict[str, Any] = {"stdout": output, "stderr": output, "preexec_fn": heed_signals}
        settings = [*SETTINGS, *overrides]
        process = subprocess.Popen(command(*settings), cwd=folder, env=environment(shared=False), **given)
        begun = time.monotonic()
        while not reached(folder, time.monotonic() - begun):
            if process.poll() is not None or time.monotonic() - begun > 300:
                process.kill()
                raise RuntimeError((folder / "output.txt").read_text()[-3000:])
            time.sleep(0.05)
        tree = psutil.Process(process.pid).children(recursive=True)
        sent = time.monotonic()
        process.send_signal(signal.SIGINT)
        try:
            status: int | None = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            status = None
        seconds = time.monotonic() - sent
    _, left = psutil.wait_procs(tree, timeout=10)
    for one in [*left, *([psutil.Process(process.pid)] if status is None else [])]:
        one.kill()
    return Result(seconds, status, len(left), lacks(folder))


def main(names: list[str]) -> int:
    """Print a line for each moment; returns how many were not as they should be."""
    wrong = 0
    with tempfile.TemporaryDirectory() as place:
        for name in names or MOMENTS:
            result = interrupt(Path(place) / name.replace(" ", "_"), *MOMENTS[name])
            good = result.status == STATUS and not result.left and not result.lacks
            wrong += not good
            files = ", ".join(f"lacks {one}" for one in result.lacks) or "files whole"
            words = f"{name:14} {result.seconds:4.1f} s  exit {result.status}  {result.left} processes left  {files}"
            print(words, flush=True)
    return wrong


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1:]))
