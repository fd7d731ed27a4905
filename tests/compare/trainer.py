"""Stands for verl's main command in tests of the launcher: reads the overrides it needs, writes a metrics log.

`+pinned=N` waits until it has at most N cores; `+fail=1` ends with an error; `+child=1` leaves a child process that
outlives nothing; `+save=1` writes verl's tracker after every step, and goes on from it; `+hold=FILE` waits after the
second step for as long as that file names the run's folder.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path


def write(path: Path, text: str) -> None:
    """Whole or not at all: tests read these files meanwhile."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def held(file: str, folder: Path) -> bool:
    """Whether the file names this folder."""
    try:
        return Path(file).read_text() == str(folder)
    except OSError:
        return False


def main() -> None:
    given = dict(argument.lstrip("+").split("=", 1) for argument in sys.argv[1:])
    folder = Path(given["trainer.default_local_dir"])
    seed, slope = int(given["mas.seed"]), float(given["slope"])
    (folder / "started").write_text(" ".join(sys.argv[1:]))
    until = time.monotonic() + 60  # the launcher pins a run once it has started
    while "pinned" in given and len(os.sched_getaffinity(0)) > int(given["pinned"]) and time.monotonic() < until:
        time.sleep(0.01)
    if hasattr(os, "sched_getaffinity"):
        (folder / "cores").write_text(json.dumps(sorted(os.sched_getaffinity(0))))
    if "child" in given:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        write(folder / "child", str(child.pid))
    if "fail" in given:
        sys.exit("there is no such model")
    only = given.get("trainer.val_only") == "true"
    tracker = folder / "latest_checkpointed_iteration.txt"
    done = int(tracker.read_text()) if tracker.exists() else -1
    with open(folder / ("validation.jsonl" if only else "metrics.jsonl"), "a" if done >= 0 else "w") as log:
        for step in range(done + 1, 1 if only else int(given["steps"]) + 1):
            while step > 2 and held(given.get("hold", "/nowhere"), folder):
                time.sleep(0.01)
            metrics = {"budget/generated_tokens": 100 * step, "budget/questions": 8 * step} if step else {}
            if step:
                metrics["budget/operations"] = 1_000_000 * step
                metrics |= {"timing_s/step": 2.0, "sampling/agent_calls": 24, "agents/a/penalty": -0.1 / step}
            if step % 2 == 0:
                metrics["val/system/f1"] = metrics["val/system/em"] = 0.2 + slope * step + 0.01 * seed
            log.write(json.dumps({"step": step, "time": time.time(), "total_steps": 9, "metrics": metrics}) + "\n")
            log.flush()
            if "save" in given:
                write(tracker, str(step))


main()
