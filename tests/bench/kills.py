"""Kill -9 at random moments of short runs, and compare what each continued run leaves with an uninterrupted run.

    python -m tests.bench.kills --kills 100

Three deterministic runs must be bit-identical to the uninterrupted run in every complete checkpoint (weights,
optimiser, random states, adapters, heads, memories, the algorithm's state), in every metric that is no time, and in the
trajectory log: one with memories and an adapter per agent, one with a policy head and adapters, one with two policies.
No line may be missing, and none partial but that of the last checkpoint. The asynchronous runs must be complete: each
step and each of its questions in the logs once, with all metrics; no question trained twice, none lost.

A run is killed again and again until it ends. The script can be killed, too: the same command goes on with its count.
"""

from __future__ import annotations

import argparse
import functools
import logging
import pickle
import random
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from tests.bench.killed_runs import BEST, CASES, QUESTIONS, SAMPLES, STEPS, Run
from tests.end_to_end.running import records
from verl_ext.storage.jsonl import append, read_log
from verl_ext.trainer.state.checkpoint import SAVING, complete_steps

# A kill comes this many steps after the first line in the run's log at most; one in EARLY at any time from the start.
REACH, EARLY = 3.0, 4


@functools.cache
def expected_of(whole: Run) -> tuple[dict[int, dict[str, Any]], dict[int, dict[str, Any]], dict[str, list[Any]]]:
    """Metrics, checkpoints and trajectories of an uninterrupted run, which are read once."""
    return whole.metrics(partial=False), whole.contents(), whole.trajectories(STEPS)


def differs(run: Run, whole: Run, ended: bool) -> list[str]:
    """What a run that was killed, or has ended, lacks or has otherwise than the uninterrupted run, so far."""
    metrics, contents, trajectories = expected_of(whole)
    last = max(complete_steps(run.place), default=0)
    done, partial = run.metrics(partial=False), run.metrics(partial=True)
    # A kill after a checkpoint leaves a line without the validation, which the next start completes.
    cut = {} if ended else {last: partial[last]} if last in partial else {}
    found = [f"metrics of step {step}" for step, values in done.items() if values != metrics.get(step)]
    found += [f"no metrics of step {step}" for step in metrics if step <= last and step not in {**done, **cut}]
    for step, values in cut.items():
        expected = {name: value for name, value in metrics[step].items() if not name.startswith("val")}
        found += [] if values == expected else [f"partial metrics of step {step}"]
    logged = run.trajectories(last)
    cut_phase = f"val {last}" if cut else ""
    of_steps = {name: lines for name, lines in trajectories.items() if int(name.split()[1]) <= last}
    names = {*logged, *of_steps} - {cut_phase}
    found += [f"trajectories of {name}" for name in sorted(names) if logged.get(name) != of_steps.get(name)]
    for step, parts in run.contents().items():
        expected = contents[step]
        names = [name for name in {*parts, *expected} if parts.get(name) != expected.get(name)]
        found += [f"global_step_{step}/{name}" for name in names]
    return found


def best_differs(run: Run, whole: Run) -> list[str]:
    """Whether a run that has ended keeps another best checkpoint than the metrics of the uninterrupted run say."""
    values = {step: metrics[BEST] for step, metrics in whole.metrics(partial=False).items() if BEST in metrics}
    best = max(values, key=lambda step: (values[step], -step))
    kept = sorted(path.name for path in (run.place / "best").iterdir())
    return [] if kept == [f"global_step_{best}"] else [f"best is {kept}, and of step {best} in the log"]


def incomplete(run: Run) -> list[str]:
    """What a run that has ended lacks: steps, validations, questions, metrics; or what it has twice."""
    of_steps = run.metrics(partial=False)
    steps = list(of_steps)
    found = [] if steps == list(range(1, STEPS + 1)) else [f"steps {steps} in the log"]
    if complete_steps(run.place)[-1:] != [STEPS]:
        found.append("no checkpoint of the last step")
    validated = [step for step, metrics in of_steps.items() if BEST in metrics]
    if validated != list(range(4, STEPS + 1, 4)):
        found.append(f"validations of steps {validated} in the log")
    questions, _ = records(run.folder, run.case.recipe)
    asked = [(line["step"], line["question"]["index"]) for line in questions if line["phase"] == "train"]
    again = {index: times for index, times in Counter(index for _, index in asked).items() if times > 1}
    if again:
        found.append(f"questions that trained more than once: {again}")
    logged = Counter(step for step, _ in asked)
    for step, metrics in of_steps.items():
        said = metrics.get("agents/answerer/calls", 0) / SAMPLES
        if not said == logged[step] == QUESTIONS + metrics["sampling/dropped_questions"]:
            found.append(f"step {step}: {logged[step]} questions in the log, {said} in the metrics")
    place = run.place / f"global_step_{STEPS}"
    given = torch.load(place / "data.pt", weights_only=False)["_num_yielded"]
    if (left := waiting(place)) != given - len(asked):
        found.append(f"of {given} questions {len(asked)} are in the log, and {left} wait in the queue")
    return found


def waiting(place: Path) -> int:
    """How many questions of the queue in a checkpoint are to be trained."""
    with open(place / "transfer_queue" / "controller_state.pkl", "rb") as file:
        tags = pickle.load(file)["partitions"]["train"].custom_meta.values()
    return sum(tag.get("is_prompt", False) for tag in tags)


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
            wrong = differs(self.run, self.whole, ended=False) if self.case.identical else []
        else:
            wrong = [f"exit status {status}"] if status else []
            if not wrong:
                wrong += best_differs(self.run, self.whole if self.case.identical else self.run)
                identical = self.case.identical
                wrong += differs(self.run, self.whole, ended=True) if identical else incomplete(self.run)
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
