"""metrics.jsonl, the log of a run: one JSON line per step. It survives kills and resumes."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_ext.reports import in_words
from verl_ext.storage import jsonl
from verl_ext.storage.files import write_file

NAME = "metrics.jsonl"
# verl's file beside it, with the step of the last checkpoint.
TRACKER = "latest_checkpointed_iteration.txt"
# The log under `trainer.val_only=true`: evaluating a checkpoint must not change the log of its training.
VALIDATION = "validation.jsonl"
# Marks of a line; see `RunLog`.
PARTIAL, CUT_SHORT = "partial", "cut_short"


def log_name(config: Any) -> str:
    """Name of the log of a run with this configuration."""
    return VALIDATION if config.trainer.get("val_only", False) else NAME


class RunLog:
    """Appends `{"step", "time", "total_steps", "headline", "metrics"}` lines to `<folder>/<name>`.

    On a resume, lines of steps after the restored checkpoint are dropped, so that the log reads like that of an
    uninterrupted run. A line with `"partial": true` holds the metrics of a step that were known when its checkpoint
    was written; the complete line that follows replaces it. If the run is killed in between, the next start writes that
    line, with `"cut_short": true`: its durations end with the checkpoint.
    """

    def __init__(self, folder: str | Path, name: str = NAME, headline: str = ""):
        self.path, self.headline = Path(folder) / name, headline
        self.total_steps = 0

    def start(self, restored_step: int, total_steps: int) -> None:
        """Prepare the log for a run that goes on after `restored_step` (0: from scratch).

        Raises:
            ValueError: the run is from scratch, and there is a log already. It is never emptied.
        """
        self.total_steps = total_steps
        self.path.parent.mkdir(parents=True, exist_ok=True)
        entries = read_log(self.path)
        if entries and not restored_step:
            raise ValueError(
                f"{self.path} is the log of an earlier run up to step {entries[-1]['step']}, and a run from scratch "
                "would replace it. Remedy: move it away, or another folder (trainer.default_local_dir=…)"
            )
        kept = [entry for entry in entries if entry["step"] <= restored_step]
        write_file(self.path, b"".join(map(jsonl.encode_line, kept)))

    def write(self, step: int, metrics: dict[str, Any], mark: str = "") -> None:
        """Append one step; values that are no numbers are left out, NaN becomes null. mark: PARTIAL or CUT_SHORT."""
        numbers = {name: _number(value) for name, value in sorted(metrics.items()) if hasattr(value, "__float__")}
        about = {"step": step, "time": time.time(), "total_steps": self.total_steps, "headline": self.headline}
        entry = about | {"metrics": numbers}
        jsonl.append(self.path, [entry | ({mark: True} if mark else {})])


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """Entries of a log in order of their steps; a line cut short by a kill is skipped, a repeated step counts once."""
    entries = {entry["step"]: entry for entry in jsonl.read_log(path)}
    return [entries[step] for step in sorted(entries)]


class LogTail:
    """Reads a growing log without reading it from the start again."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._place = (0, 0)  # inode and offset

    def news(self) -> list[dict[str, Any]]:
        """The complete entries since the last call; all entries if the log was rewritten in between."""
        try:
            with open(self.path, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                start = self._place[1] if self._place[0] == inode else 0
                file.seek(start)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._place = (inode, start + len(whole))
        entries = map(jsonl.parse_line, whole.splitlines(keepends=True))
        return [entry for entry in entries if entry is not None and not entry.get(PARTIAL)]


def series(entries: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of one metric, where it was recorded."""
    points = [(e["step"], e["metrics"][name]) for e in entries if e["metrics"].get(name) is not None]
    return [step for step, _ in points], [value for _, value in points]


def failures(metrics: Mapping[str, Any], phase: str = "") -> str:
    """Why trajectories of a step failed, e.g. `diverged 96, timeout 2`; empty if all finished. `phase`: or `val/`."""
    start = f"{phase}sampling/failed/"
    found = {name.removeprefix(start): number for name, number in metrics.items() if name.startswith(start) and number}
    return ", ".join(f"{in_words(status)} {number:.0f}" for status, number in found.items())


def charged(entries: list[dict[str, Any]]) -> bool:
    """Whether any agent had an agent-specific reward other than 0."""
    return any(
        value
        for entry in entries
        for name, value in entry["metrics"].items()
        if name.startswith("agents/") and name.endswith("/penalty")
    )


def _number(value: Any) -> float | int | None:
    number = value if isinstance(value, int) else float(value)
    return number if math.isfinite(number) else None
