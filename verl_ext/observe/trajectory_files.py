"""The files of the trajectory log: bounded, and readable after a kill at any moment."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

FOLDER = "trajectories"
# Of `trainer.val_only=true`: evaluating a checkpoint must not touch the log of its training.
VALIDATION_FOLDER = "trajectories_validation"


def folder_name(config: Any) -> str:
    """Name of the log's folder in that of a run with this configuration."""
    return VALIDATION_FOLDER if config.trainer.get("val_only", False) else FOLDER


class TrajectoryLog:
    """Appends JSON lines to `<folder>/000001.jsonl`, …: at most `files` of at most `file_bytes`, the oldest go first.

    What one `write` gets stays in one file if a file can hold it. A line longer than a file is left out, and said so.
    """

    def __init__(self, folder: str | Path, file_bytes: int, files: int):
        self.folder, self.file_bytes, self.files = Path(folder), file_bytes, files

    def start(self, restored_step: int, validates_again: bool = True) -> None:
        """Prepare for a run that goes on after `restored_step` (0: from scratch): later records are dropped.

        Args:
            validates_again: the run starts with a validation, so the one that was made at `restored_step` goes, too.
        """
        for path in _numbered(self.folder):
            kept = [line for line in _lines(path) if restored_step and _stays(line, restored_step, validates_again)]
            if not kept:
                path.unlink()
            elif sum(map(len, kept)) != path.stat().st_size:
                temporary = path.with_suffix(".tmp")
                temporary.write_bytes(b"".join(kept))
                os.replace(temporary, path)

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append these records."""
        encoded = [json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n" for line in lines]
        fitting = [line for line in encoded if len(line) <= self.file_bytes]
        if len(fitting) < len(encoded):
            size = f"{self.file_bytes / 1e6:g} MB"
            left_out = len(encoded) - len(fitting)
            logger.warning("%d records are longer than mas.trajectory_log.file_mb (%s): left out", left_out, size)
        if fitting:
            self.folder.mkdir(parents=True, exist_ok=True)
        total = sum(map(len, fitting))
        blocks = [b"".join(fitting)] if 0 < total <= self.file_bytes else fitting
        for block in blocks:
            with open(self._file_for(len(block)), "ab") as file:
                file.write(block)

    def _file_for(self, size: int) -> Path:
        """The file that takes `size` more bytes: the last one, or a new one, for which the oldest may have to go."""
        paths = _numbered(self.folder)
        if paths and paths[-1].stat().st_size + size <= self.file_bytes:
            return paths[-1]
        for path in paths[: max(0, len(paths) - self.files + 1)]:
            path.unlink()
        return self.folder / f"{int(paths[-1].stem) + 1 if paths else 1:06d}.jsonl"


def log_files(path: str | Path) -> list[Path]:
    """The files of a log, oldest first.

    Args:
        path: a run's folder, the log's folder in it, or one file.

    Raises:
        FileNotFoundError: there is no trajectory log; says where one is looked for.
    """
    path = Path(path)
    if path.is_file():
        return [path]
    for folder in (path, path / FOLDER, path / VALIDATION_FOLDER):
        if found := _numbered(folder):
            return found
    raise FileNotFoundError(
        f"{path} holds no trajectory log: expected a file of one, or a folder with {FOLDER}/000001.jsonl. Remedy: the "
        "run's folder (trainer.default_local_dir) of a run with mas.trajectory_log.train_questions above 0"
    )


def read_records(path: str | Path) -> Iterator[dict[str, Any]]:
    """Records of a log (see `log_files`) in order; lines that a kill cut short are skipped."""
    for file in log_files(path):
        for line in _lines(file):
            if (record := _parsed(line)) is not None:
                yield record


def _numbered(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("*.jsonl") if path.stem.isdigit()), key=lambda path: int(path.stem))


def _lines(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        yield from file


def _stays(line: bytes, restored_step: int, validates_again: bool) -> bool:
    record = _parsed(line)
    if record is None:
        return False
    return record["step"] < restored_step + (0 if record["phase"] == "val" and validates_again else 1)


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The record of a line; None if it is none, or cut short by a kill."""
    try:
        record = json.loads(line, parse_constant=lambda _: None) if line.endswith(b"\n") else None
    except ValueError:
        return None
    if not isinstance(record, dict) or record.get("kind") not in ("question", "call"):
        return None
    return record if record.keys() >= {"step", "phase", "question"} else None
