"""Shows the progress of a run in the driver's terminal: reads the run's log, prints a line per step."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from pathlib import Path
from typing import Any

from verl_ext.observe import error_log
from verl_ext.observe.collapse import STEPS, advice, collapsed
from verl_ext.observe.doctor_report import untaught
from verl_ext.observe.runlog import NAME, LogTail, failures
from verl_ext.reports import in_words

# In the folder of a run: what it waited for when nothing happened.
WAITS = "watchdog.jsonl"
# What a line says of a step, by metric.
SHOWN = {
    "system/reward": "reward {:.3f}",
    "sampling/tokens_per_second": "{:,.0f} tok/s",
    "timing_s/step": "{:.1f} s",
}


class Progress:
    """A thread that follows `<folder>/<name>` and prints new steps, and what is added to error.log.

    Args:
        folder: of the run.
        headline: quantity of validation to show (`val/system/<headline>`).
        name: of the log.
        interval: seconds between two reads of the log.
    """

    def __init__(self, folder: Path, headline: str, name: str = NAME, interval: float = 0.5):
        self.headline, self.interval = headline, interval
        self._tail, self._waits = LogTail(folder / name), LogTail(folder / WAITS)
        self._waits.news()
        self._errors = folder / error_log.NAME
        self._read = self._errors.stat().st_size if self._errors.exists() else 0  # what an earlier run has left
        self._recent = self._tail.news()
        self._seen = {entry["step"] for entry in self._recent}
        self._warned: set[str] = set()
        self._started = time.time()
        self._times: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True, name="progress")

    def start(self) -> None:
        """Print what happens first, and follow the log."""
        print("Starting Ray, the workers and the rollout engine (some 20 s on a small machine) …", flush=True)
        self._thread.start()

    def stop(self) -> None:
        """Show the remaining steps and end."""
        self._stop.set()
        self._thread.join()
        self._show_new()

    def _follow(self) -> None:
        waited = 0
        while not self._stop.wait(self.interval):
            self._show_new()
            if self._times and "matplotlib.figure" not in sys.modules:  # takes seconds, which a Ctrl-C does not have
                importlib.import_module("matplotlib.figure")
            if not self._times and time.time() - self._started > 20 * (waited + 1):
                waited += 1
                print(f"… {time.time() - self._started:.0f} s, no step has ended yet", flush=True)

    def _show_errors(self) -> None:
        """Print the lines that were added to error.log; the last one may still be being written."""
        if self._errors.exists():
            with open(self._errors, "rb") as file:
                file.seek(self._read)
                text = b"".join(file.read().rpartition(b"\n")[:2])
            print(text.decode(errors="replace"), end="", flush=True)
            self._read += len(text)

    def _show_new(self) -> None:
        for entry in self._waits.news():
            print(f"\n{entry['text'][:1].upper()}{entry['text'][1:]}\n", flush=True)
        self._show_errors()
        for entry in self._tail.news():
            fresh = entry["step"] not in self._seen or entry["time"] > self._started
            if fresh and entry["time"] not in self._times:
                self._seen.add(entry["step"])
                self._times.append(entry["time"])
                print(self._line(entry), flush=True)
                self._warn_of_collapse(entry)
                for sentence in untaught(entry):
                    print(f"  {sentence}", flush=True)

    def _warn_of_collapse(self, entry: dict[str, Any]) -> None:
        """Warn once for each agent. Steps that an earlier run logged from here on do not count."""
        self._recent = [*(one for one in self._recent if one["step"] < entry["step"]), entry][-4 * STEPS :]
        for agent in collapsed(self._recent):
            if agent not in self._warned:
                self._warned.add(agent)
                print("\n".join(["", *advice(agent), ""]), flush=True)

    def _line(self, entry: dict[str, Any]) -> str:
        step, total, metrics = entry["step"], entry["total_steps"], entry["metrics"]
        parts = [f"step {step:>{len(str(total))}}/{total}"]
        parts += [words.format(metrics[name]) for name, words in SHOWN.items() if metrics.get(name) is not None]
        if len(self._times) > 2 and step < total:
            per_step = (self._times[-1] - self._times[1]) / (len(self._times) - 2)
            parts.append(f"{duration(per_step * (total - step))} left")
        if metrics.get("sampling/failed_trajectories"):
            parts.append(f"{metrics['sampling/failed_trajectories']:.0f} trajectories failed: {failures(metrics)}")
        if metrics.get("sampling/without_forks"):
            parts.append(f"{metrics['sampling/without_forks']:.0f} trajectories without forks")
        validation = metrics.get(f"val/system/{self.headline}")
        if validation is not None:
            failed = metrics.get("val/sampling/failed_trajectories")
            reasons = failures(metrics, "val/")
            lost = f" ({failed:.0f} trajectories failed and are not in it: {reasons})" if failed else ""
            parts.append(f"validation {in_words(self.headline)} {validation:.3f}{lost}")
        return "  ".join(parts)


def duration(seconds: float) -> str:
    """Seconds in words: `2 min 05 s`, `3 h 10 min`."""
    minutes, seconds = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"
