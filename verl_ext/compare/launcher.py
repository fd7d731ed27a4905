"""Runs the commands of a study, several at a time; complete runs are not repeated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import psutil

from verl_ext.compare.study import Method, Study
from verl_ext.observe.progress import duration
from verl_ext.observe.runlog import NAME, TRACKER, LogTail
from verl_ext.reports import commit, machine
from verl_ext.storage.files import lock_folder, write_file

# Written when a run is complete: its command and its cost.
DONE = "run.json"
# Written first: the process of the run, when it started (process numbers are used again), its command, its cost so far.
PROCESS = "process.json"
# A process may end while it is being looked at.
GONE = (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError)
# Seconds by which two readings of a process's start may differ: the system adds ticks since boot to an adjusted clock.
CLOCK = 2.0
# Seconds between two checks of the runs, two measurements of memory (0.1 s each), and two progress lines.
LOOK, LOOK_AT_MEMORY, TELL = 0.5, 15.0, 60.0


@dataclass
class Run:
    """One method with one seed, in a folder of its own."""

    method: Method
    seed: int
    folder: Path
    command: list[str]

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.method.name} seed {self.seed}"

    @property
    def budget(self) -> dict[str, int]:
        """Its limits (`mas.budget`); none: it does not train."""
        start = "mas.budget."
        given = settings(self.command).items() if self.method.trains else ()
        return {name.removeprefix(start): int(limit) for name, limit in given if name.startswith(start)}

    @property
    def record(self) -> dict[str, Any] | None:
        """The record of a complete run; None if it is not complete, or another command made it."""
        return self.read(DONE)

    def read(self, name: str) -> dict[str, Any] | None:
        """A file of the run's folder; None if there is none, it is damaged, or another command wrote it."""
        try:
            record: dict[str, Any] = json.loads((self.folder / name).read_text(encoding="utf-8"))
            return record if settings(record["command"]) == settings(self.command) else None
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None


def changed_since(runs: Sequence[Run]) -> list[str]:
    """The files and folders that overrides of complete runs name, and that are newer than the runs."""
    found: dict[str, None] = {}
    for run in (run for run in runs if run.record is not None):
        ended = (run.folder / DONE).stat().st_mtime
        for path in (Path(value) for value in settings(run.command).values() if value.startswith("/")):
            files = filter(Path.is_file, path.iterdir() if path.is_dir() else [path])
            if any(file.stat().st_mtime > ended for file in files):
                found[str(path)] = None
    return [*found]


def settings(overrides: Sequence[str]) -> dict[str, str]:
    """The overrides without repetition: the last one of each setting counts."""
    return {name: value for name, _, value in (text.partition("=") for text in overrides)}


# The command of a run; its overrides and folder are appended.
PROGRAM = (sys.executable, "-m", "verl.trainer.main_ppo")


def plan(study: Study, output: Path) -> list[Run]:
    """All runs of a study."""
    place = output / study.name
    return [Run(m, seed, place / m.name / f"seed_{seed}", study.command(m, seed)) for m, seed in study.runs]


def shares(jobs: int) -> list[set[int]]:
    """Divide this process's cores among `jobs`; with more jobs than cores, some share one.

    Each run is pinned to its cores: threads of a run wait for each other and must not wait for threads of another run.
    Two unpinned runs on two cores took three times as long for a step as one run after the other.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return [set(cores[job % len(cores) :: jobs]) if cores else set() for job in range(jobs)]


class Live:
    """A running process: its process group, cores, log and memory."""

    def __init__(self, run: Run, room: Path, program: Sequence[str], environment: dict[str, str], cores: set[int]):
        self.run, self.cores, self.started = run, cores, time.time()
        before = begun(run)
        if not before:
            set_aside(run.folder)  # it has no checkpoint, or other settings
        run.folder.mkdir(parents=True, exist_ok=True)
        commits = [*before.get("commit", "").split(", "), commit()]
        self.commit = ", ".join(dict.fromkeys(filter(None, commits)))
        self.peak, self.spent, self._looked = before.get("peak_gb", 0.0), before.get("seconds", 0.0), 0.0
        command = [*program, *run.command, f"trainer.default_local_dir={run.folder}"]
        self.output = open(run.folder / "output.txt", "ab")
        self.process = subprocess.Popen(
            command, cwd=room, env=environment, stdout=self.output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            self._process = {"pid": self.process.pid, "started": psutil.Process(self.process.pid).create_time()}
            write_file(run.folder / PROCESS, json.dumps(self._process | self.cost))
            if cores:  # its children inherit them
                os.sched_setaffinity(self.process.pid, cores)
        except BaseException:  # a full disk, Ctrl-C: nobody else knows of it
            self.kill()
            raise
        self.tail, self.step, self.used = LogTail(run.folder / NAME), 0, dict[str, float]()
        self._before: float | None = None  # of its budget, used before this process

    @property
    def tokens(self) -> int:
        """Generated for training, since the run began."""
        return int(self.used.get("generated_tokens", 0))

    @property
    def share(self) -> float:
        """How much of its budget is used, from 0 to 1: a run goes on until all limits are reached."""
        parts = (self.used.get(name, 0) / limit for name, limit in self.run.budget.items())
        return min(1.0, *parts) if self.run.budget else 0.0

    @property
    def progress(self) -> float:
        """How much of its budget this process has used."""
        return self.share - (self._before or 0.0)

    @property
    def cost(self) -> dict[str, Any]:
        """Command, commit, seconds and memory until now, those of the parts before a kill included."""
        seconds = self.spent + time.time() - self.started
        return {"command": self.run.command, "seconds": seconds, "peak_gb": self.peak, "commit": self.commit}

    def look(self) -> int | None:
        """Follow the log and the memory; the exit status once it has ended."""
        for entry in self.tail.news():
            self.step = entry["step"]
            self.used |= {n: used for n in self.run.budget if (used := entry["metrics"].get(f"budget/{n}")) is not None}
        if self._before is None:
            self._before = self.share
        if time.time() - self._looked > LOOK_AT_MEMORY:
            self._looked = time.time()
            self.peak = max(self.peak, memory(self.process.pid))
            write_file(self.run.folder / PROCESS, json.dumps(self._process | self.cost))
        return self.process.poll()

    def close(self, status: int, jobs: int) -> None:
        """Record that the run has ended; `jobs`: how many runs shared the machine."""
        self.output.close()
        if status == 0:
            write_file(self.run.folder / DONE, json.dumps(self.cost | {"machine": machine(), "jobs": jobs}))

    def kill(self) -> None:
        """End it and everything that it has started."""
        with suppress(*GONE):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.output.close()


def run_all(runs: list[Run], output: Path, jobs: int, program: Sequence[str] = PROGRAM) -> list[Run]:
    """Run what is not complete, `jobs` at a time; returns the runs that failed.

    Interrupted (Ctrl-C, SIGTERM, a closed terminal), it ends what it has started; the next call goes on with the runs
    that are missing, and first ends what a killed call left behind.

    Raises:
        BlockingIOError: another call is using `output`.
    """
    output.mkdir(parents=True, exist_ok=True)
    lock = lock_folder(output)  # two launchers would write the same runs
    if lock is None:
        raise BlockingIOError(f"another comparison is running in {output}: wait for it, or give another --output")
    with lock, _signals():
        return _run_all(runs, output, jobs, program)


def _run_all(runs: list[Run], output: Path, jobs: int, program: Sequence[str]) -> list[Run]:
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "HYDRA_FULL_ERROR": "0"}
    waiting = [run for run in runs if run.record is None]
    for run in waiting:
        end_left_behind(run.folder)
    total, trained = len(runs), 0.0  # the latter in budgets, of the runs that have ended
    failed: list[Run] = []
    live: list[Live] = []
    started, printed, free = time.time(), time.time(), shares(jobs)
    print(f"{total} runs, {total - len(waiting)} of them complete, {jobs} at a time, in {output}", flush=True)
    for path in changed_since(runs):
        print(f"  {path} has changed since complete runs read it: to repeat them, remove their folders", flush=True)
    try:
        while waiting or live:
            while waiting and len(live) < jobs:
                live.append(Live(waiting.pop(0), output, program, environment, free.pop(0)))
            time.sleep(LOOK)
            for one in list(live):
                status = one.look()
                if status is None:
                    continue
                one.close(status, jobs)
                live.remove(one)
                free.append(one.cores)
                failed += [one.run] if status else []
                trained += 0.0 if status else one.progress
                left = time_left(waiting, live, trained, time.time() - started)
                print(f"[{total - len(waiting) - len(live)}/{total}] {_outcome(one, status)}{left}", flush=True)
            if live and time.time() - printed > TELL:
                printed = time.time()
                left = time_left(waiting, live, trained, printed - started)
                print(f"  … {'; '.join(map(_where, live))}{left}", flush=True)
    finally:
        for one in live:
            one.kill()
    return failed


def time_left(waiting: Sequence[Run], live: Sequence[Live], trained: float, seconds: float) -> str:
    """In words, from the budgets that were used in so many seconds; nothing before the first step's end.

    A run that does not train takes minutes where a training takes hours: it is not counted.
    trained: how many budgets the runs that have ended used.
    """
    to_go = sum(bool(run.budget) for run in waiting) + sum(1 - one.share for one in live if one.run.budget)
    done = trained + sum(one.progress for one in live)
    return f"   {duration(seconds / done * to_go)} left" if to_go and done else ""


def _where(one: Live) -> str:
    if not one.run.budget:
        return f"{one.run.name}: validation"
    return f"{one.run.name} step {one.step}, {one.tokens:,} tokens, {one.share:.0%} of its budget"


def _outcome(one: Live, status: int) -> str:
    cost = f"{one.run.name}: {time.time() - one.started:.0f} s, {one.step} steps, {one.peak:.1f} GB"
    if not status:
        return cost
    output = one.run.folder / "output.txt"
    end = "\n    ".join(output.read_text(errors="replace").strip().splitlines()[-12:])
    return f"{cost}, FAILED with exit status {status}; the end of {output}:\n    {end}\n"


def memory(pid: int) -> float:
    """Proportional set size of the process and all its descendants (shared pages counted once), in GB."""
    total = 0
    with suppress(*GONE):
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            with suppress(*GONE):
                total += process.memory_full_info().pss
    return total / 1e9


def set_aside(folder: Path) -> None:
    """Rename a run's folder, if there is one, to the first free NAME.1, NAME.2, …; nothing is deleted."""
    if folder.exists():
        folder.rename(next(one for n in count(1) if not (one := folder.with_name(f"{folder.name}.{n}")).exists()))


def begun(run: Run) -> dict[str, Any]:
    """The record of a run that was killed and has a checkpoint to go on from; empty: it starts afresh."""
    return (run.read(PROCESS) or {}) if (run.folder / TRACKER).is_file() else {}


def end_left_behind(folder: Path) -> None:
    """End the process that `PROCESS` of a run's folder records, with its process group, if it still runs."""
    try:
        record = json.loads((folder / PROCESS).read_text(encoding="utf-8"))
        pid, started = record["pid"], record["started"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return
    with suppress(*GONE):
        process = psutil.Process(pid)
        if abs(process.create_time() - started) < CLOCK:
            os.killpg(pid, signal.SIGKILL)  # it was started as the leader of its own group
            process.wait(10)


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGHUP (unless ignored, as under nohup) interrupt like Ctrl-C."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
