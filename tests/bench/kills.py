"""Kill -9 at random moments of short runs, and compare what each continued run leaves with an uninterrupted run.

    python -m tests.bench.kills --kills 100

Two deterministic runs must be bit-identical to the uninterrupted run in every complete checkpoint (weights, optimiser,
random states, adapters, heads, memories, the algorithm's state) and in every metric that is no time: one with memories
and an adapter per agent, one with a policy head and adapters. An asynchronous run must be complete: each step logged
once, no question trained twice, none lost.

A run is killed again and again until it ends. The script can be killed, too: the same command goes on with its count.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import logging
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from tests.end_to_end.running import command, entries, environment, lasting, records
from verl_ext.memory import read_snapshot
from verl_ext.storage.jsonl import append, read_log
from verl_ext.trainer.state.checkpoint import SAVING, complete_steps

STEPS, QUESTIONS, SAMPLES = 16, 4, 4
BEST = "val/system/reward"
COMMON = [f"data.train_batch_size={QUESTIONS}", "data.val_max_samples=4", "trainer.save_freq=1", "trainer.test_freq=4"]
COMMON += [f"trainer.keep_best={BEST}", f"trainer.total_training_steps={STEPS}", "trainer.val_before_train=false"]
HEAD = "+mas.agents.orchestrator.head={encoder: hashing, lr: 0.1, entropy: 0.01}"
# A kill comes this many steps after the first line in the run's log at most; one in EARLY at any time from the start.
REACH, EARLY = 3.0, 4


@dataclass(frozen=True)
class Case:
    """A run that is killed: its recipe and overrides; whether a continued run must be bit-identical."""

    recipe: str
    overrides: tuple[str, ...]
    identical: bool = True


ADAPTERS = ("mas.policy=per_agent_lora", "actor_rollout_ref.actor.optim.lr=1e-3", "mas.deterministic=true")
TRAINS = ("mas.workflow.train_agents=true", "mas.loss.agent_weights=batch", "mas.advantage.baseline=mean")
TOKENS = "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"
ASYNCHRONOUS = ("trainer.v1.trainer_mode=mas_colocate_async", "actor_rollout_ref.rollout.agent.num_workers=2")
CASES = {
    "memory": Case("joyagents_tiny", ADAPTERS),
    "heads": Case("puppeteer_tiny", (*ADAPTERS, *TRAINS, TOKENS, HEAD)),
    "asynchronous": Case("mhgpo_tiny", ASYNCHRONOUS, identical=False),
}


class Run:
    """A case in a folder of its own. `data` is shared by all."""

    def __init__(self, case: Case, folder: Path, data: Path, *overrides: str):
        self.case, self.folder, self.place = case, folder, folder / "runs" / case.recipe
        given = [*COMMON, *case.overrides, *overrides]
        if case.recipe != "mhgpo_tiny":  # whose data are where it runs
            given.append(f"mas.prepare.output_dir={data}")
        given += [f"mas.trajectory_log.train_questions={QUESTIONS}", "mas.trajectory_log.files=100"]
        self.command = command(*given, recipe=case.recipe)

    def live(self, moment: Callable[[float, bool], bool]) -> int | None:
        """Start the command; kill all its processes once `moment(seconds, alive)`. The exit status, None if killed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log, started = self.place / "metrics.jsonl", time.time()
        with open(self.folder / "output.txt", "w") as output:
            options: dict[str, Any] = {"stdout": output, "stderr": output, "start_new_session": True}
            process = subprocess.Popen(self.command, cwd=self.folder, env=environment(), **options)
            while process.poll() is None:
                alive = any(entry["time"] > started for entry in read_log(log))
                if moment(time.time() - started, alive):
                    kill(process)
                    return None
                time.sleep(0.02)
        return process.returncode

    def seconds_a_step(self) -> float:
        """Of an uninterrupted run."""
        times = [entry["time"] for entry in entries(self.folder, self.case.recipe)]
        return (times[-1] - times[0]) / (len(times) - 1)

    def metrics(self) -> dict[int, dict[str, Any]]:
        """Step -> metrics that are no times, of the finished steps."""
        done = [entry for entry in entries(self.folder, self.case.recipe) if not entry.get("partial")]
        # How many programs a sandbox had in its cache depends on the restart.
        return {
            entry["step"]: {name: value for name, value in lasting(entry).items() if "tools/" not in name}
            for entry in done
        }

    def contents(self) -> dict[int, dict[str, Any]]:
        """Step -> content of each part, for the complete checkpoints."""
        return {step: content(self.place / f"global_step_{step}") for step in complete_steps(self.place)}


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to all processes that a command has started, at once."""
    tree = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for one in tree:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()
    psutil.wait_procs(tree, timeout=30)


def content(place: Path) -> dict[str, Any]:
    """File -> hash of what it holds, of a checkpoint."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in place.rglob("*.pt")):
        loaded = torch.load(path, weights_only=False)
        loaded.pop("rng", None)  # each process draws its own at the start, and nothing that trains depends on them
        held = repr(comparable(loaded))
        found[str(path.relative_to(place))] = hashlib.sha256(held.encode()).hexdigest()
    if (place / "memory").exists():
        found["memory"] = read_snapshot(place / "memory").content_hash()
    if (place / "algorithm.json").exists():
        found["algorithm.json"] = (place / "algorithm.json").read_text()
    return found


def comparable(value: Any) -> Any:
    """With tensors and arrays as hashes of their bytes, so that == compares bit by bit."""
    value = getattr(value, "_local_tensor", value)
    if isinstance(value, torch.Tensor):
        numbers = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        return str(value.dtype), tuple(value.shape), hashlib.sha256(numbers.tobytes()).hexdigest()
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [comparable(item) for item in value]
    return hashlib.sha256(value.tobytes()).hexdigest() if hasattr(value, "tobytes") else value


@functools.cache
def expected_of(whole: Run) -> tuple[dict[int, dict[str, Any]], dict[int, dict[str, Any]]]:
    """Metrics and checkpoints of an uninterrupted run, which are read once."""
    return whole.metrics(), whole.contents()


def differs(run: Run, whole: Run) -> list[str]:
    """What a run has otherwise than the uninterrupted run, so far."""
    metrics, contents = expected_of(whole)
    found = [f"metrics of step {step}" for step, values in run.metrics().items() if values != metrics.get(step)]
    for step, parts in run.contents().items():
        expected = contents[step]
        names = [name for name in {*parts, *expected} if parts.get(name) != expected.get(name)]
        found += [f"global_step_{step}/{name}" for name in names]
    return found


def best_differs(run: Run, whole: Run) -> list[str]:
    """Whether a run that has ended keeps another best checkpoint than the metrics of the uninterrupted run say."""
    values = {step: metrics[BEST] for step, metrics in whole.metrics().items() if BEST in metrics}
    best = max(values, key=lambda step: (values[step], -step))
    kept = sorted(path.name for path in (run.place / "best").iterdir())
    return [] if kept == [f"global_step_{best}"] else [f"best is {kept}, and of step {best} in the log"]


def incomplete(run: Run) -> list[str]:
    """What a run that has ended lacks: steps, or questions; or what it has twice."""
    steps = [step for step in run.metrics() if step]
    found = [] if steps == list(range(1, STEPS + 1)) else [f"steps {steps} in the log"]
    if complete_steps(run.place)[-1:] != [STEPS]:
        found.append("no checkpoint of the last step")
    questions, _ = records(run.folder, run.case.recipe)
    asked = [(line["step"], line["question"]["index"]) for line in questions if line["phase"] == "train"]
    again = {index: times for index, times in Counter(index for _, index in asked).items() if times > 1}
    if again:
        found.append(f"questions that trained more than once: {again}")
    # Rows that were sampled before a kill train from the checkpoint; then what was said is neither in log nor metrics.
    logged = Counter(step for step, _ in asked)
    for step, metrics in run.metrics().items():
        said = metrics.get("agents/answerer/calls", 0) / SAMPLES
        if said != logged[step]:
            found.append(f"step {step}: {logged[step]} questions in the log, {said} in the metrics")
    return found


class Killer:
    """Kills the runs of one case, and keeps count in a file."""

    def __init__(self, name: str, folder: Path, dice: random.Random):
        self.name, self.case, self.folder, self.dice = name, CASES[name], folder / name, dice
        self.results = folder / "kills.jsonl"
        data = folder / f"data_{name}"
        self.whole = Run(self.case, self.folder / "whole", data, "trainer.max_actor_ckpt_to_keep=100")
        self.run = Run(self.case, self.folder / "killed", data)

    def prepare(self) -> None:
        """Make the uninterrupted run, if it is not there."""
        if complete_steps(self.whole.place)[-1:] != [STEPS]:
            shutil.rmtree(self.whole.folder, ignore_errors=True)
            status = self.whole.live(lambda *_: False)
            assert status == 0, (self.whole.folder / "output.txt").read_text()[-4000:]

    def once(self) -> None:
        """Let the run continue, and kill it. If it ends, it is compared, and the next one starts from scratch."""
        reach = REACH * self.whole.seconds_a_step()
        early, wait = self.dice.random() < 1 / EARLY, self.dice.uniform(0, reach)
        born: list[float] = []

        def moment(seconds: float, alive: bool) -> bool:
            if early:
                return seconds > 4 * wait
            if alive and not born:
                born.append(seconds)
            return bool(born) and seconds > born[0] + wait

        status = self.run.live(moment)
        if status is None:
            saving = [path.parent.name for path in self.run.place.glob(f"global_step_*/{SAVING}")]
            self._note("killed", step=max(complete_steps(self.run.place), default=0), saving=saving, alive=bool(born))
            wrong = differs(self.run, self.whole) if self.case.identical else []
        else:
            wrong = [f"exit status {status}"] if status else []
            if not wrong:
                wrong += best_differs(self.run, self.whole if self.case.identical else self.run)
                wrong += differs(self.run, self.whole) if self.case.identical else incomplete(self.run)
        if wrong:
            place = self.folder / f"wrong_{time.time():.0f}"
            self.run.folder.rename(place)
            self._note("wrong", what=wrong[:20], place=str(place))
        elif status == 0:
            self._note("ended")
            shutil.rmtree(self.run.folder)

    def _note(self, event: str, **about: Any) -> None:
        append(self.results, [{"case": self.name, "event": event, **about}])
        print(self.name, event, *(f"{name}={value}" for name, value in about.items()), flush=True)


def table(results: Path) -> list[str]:
    """A line per case: kills, of them while a checkpoint was written, runs that ended, and what was wrong."""
    lines = []
    for name, case in CASES.items():
        of_case = [entry for entry in read_log(results) if entry["case"] == name]
        kills = [entry for entry in of_case if entry["event"] == "killed"]
        saving = sum(bool(entry["saving"]) for entry in kills)
        ended, wrong = (sum(entry["event"] == event for entry in of_case) for event in ("ended", "wrong"))
        must = "bit-identical" if case.identical else "complete"
        lines.append(
            f"{name:<13} {len(kills):>4} kills ({saving} while a checkpoint was written), {ended} runs ended, "
            f"{wrong} not {must}"
        )
    return lines


def main() -> None:
    """Kill until the count is reached, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after this time with fewer kills")
    parser.add_argument("--folder", type=Path, default=Path("runs/kills"))
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    given = parser.parse_args()
    end = time.time() + 60 * given.minutes
    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)  # a warning for each tensor that is read
    folder, dice = given.folder.absolute(), random.Random()
    folder.mkdir(parents=True, exist_ok=True)
    killers = [Killer(name, folder, dice) for name in given.cases]
    while time.time() < end:
        done = Counter(entry["case"] for entry in read_log(folder / "kills.jsonl") if entry["event"] == "killed")
        if sum(done.values()) >= given.kills:
            break
        killer = min(killers, key=lambda one: done[one.name])
        killer.prepare()
        killer.once()
    print("\n".join(table(folder / "kills.jsonl")))
    if any(entry["event"] == "wrong" for entry in read_log(folder / "kills.jsonl")):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
