"""verl's log of a fine-tuning: kept in parts, read, and shown step by step in the terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from verl_ext.observe.progress import duration
from verl_ext.observe.runlog import LogTail
from verl_ext.storage.jsonl import read_log

LOG = "sft.jsonl"  # verl's metrics, a line per step
# Seconds between two lines in the terminal.
INTERVAL = 5.0


def set_aside(log: Path) -> None:
    """Give the log of an earlier part a number, as verl empties it at the start."""
    if log.is_file() and log.stat().st_size:
        log.rename(log.with_name(f"{log.stem}.{len(_parts(log))}{log.suffix}"))


def losses_of(log: Path) -> tuple[list[float], list[float]]:
    """Losses per training step, and of the held-out conversations, as verl has logged them in all parts."""
    training: dict[int, float] = {}
    held: dict[int, float] = {}
    for part in _parts(log):
        entries = list(read_log(part))
        first = min((entry["step"] for entry in entries), default=math.inf)  # from here on the part before was lost
        for name, found in (("train/loss", training), ("val/loss", held)):
            for step in [step for step in found if step >= first]:
                del found[step]
            logged = [(entry["step"], entry["data"][name]) for entry in entries if name in entry["data"]]
            found |= {step: math.nan if loss is None else float(loss) for step, loss in logged}  # null: not finite
    return [training[step] for step in sorted(training)], [held[step] for step in sorted(held)]


def _parts(log: Path) -> list[Path]:
    """The logs of the earlier parts, in order, and `log`."""
    earlier = (log.with_name(f"{log.stem}.{number}{log.suffix}") for number in count(1))
    return [*takewhile(Path.is_file, earlier), log]


class StepLines:
    """Called as `tqdm`, prints a line every `INTERVAL` seconds: verl's bar tells the time left of an epoch only.

    Args:
        log: that verl writes now.
        total: steps of the whole training.
    """

    def __init__(self, log: Path, total: int):
        self.total = total
        self._tail = LogTail(log)
        self._first: tuple[int, float] | None = None  # the first step of this process, which is slow, and its end
        self._printed = -math.inf

    def __call__(self, batches: Iterable[Any], disable: bool = False, **_: Any) -> Iterable[Any]:
        """The batches of an epoch; `disable`: this rank prints nothing."""
        return batches if disable else self._followed(batches)

    def _followed(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            self._show(time.monotonic())  # verl asks for the next batch once it has logged this one's step

    def _show(self, now: float) -> None:
        logged = [entry for entry in self._tail.news() if "train/loss" in entry["data"]]
        if not logged:
            return
        step, loss = logged[-1]["step"], logged[-1]["data"]["train/loss"]
        self._first = self._first or (step, now)
        if now - self._printed < INTERVAL:
            return
        self._printed = now
        print(self.line(step, math.nan if loss is None else loss, now), flush=True)

    def line(self, step: int, loss: float, now: float) -> str:
        """`step 12/36  loss 0.531  4 min 10 s left`."""
        parts = [f"step {step:>{len(str(self.total))}}/{self.total}", f"loss {loss:.3f}"]
        first, ended = self._first or (step, now)
        if step > first:
            parts.append(f"{duration((now - ended) / (step - first) * (self.total - step))} left")
        return "  ".join(parts)
