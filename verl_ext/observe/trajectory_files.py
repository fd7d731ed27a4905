"""The files of trajectory records: of a run, bounded in size; of an evaluation, one file. A kill damages no record."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from verl_ext.observe.record import Record
from verl_ext.storage.files import write_file
from verl_ext.storage.jsonl import encode_line, parse_line, read_log

logger = logging.getLogger(__name__)

FOLDER = "trajectories"
# The folder under `trainer.val_only=true`: evaluating a checkpoint must not change the log of its training.
VALIDATION_FOLDER = "trajectories_validation"
# Beside the log of training: the rows of the logged questions of a step.
ROWS = "rows/step_{step:06d}.json.gz"
# Of `verl_ext evaluate`.
EVALUATION_FILE = "trajectories.jsonl"


def folder_name(config: Any) -> str:
    """Name of the log's folder in that of a run with this configuration."""
    return VALIDATION_FOLDER if config.trainer.get("val_only", False) else FOLDER


class TrajectoryLog:
    """Appends records to `<folder>/000001.jsonl`, …: at most `files` of at most `file_bytes`, the oldest go first.

    What one `write` gets stays in one file if a file can hold it. A record that is longer than a file is split: its
    question first, then its calls. A part that is still too long is left out, with a warning.
    """

    def __init__(self, folder: str | Path, file_bytes: int, files: int):
        self.folder, self.file_bytes, self.files = Path(folder), file_bytes, files

    def start(self, restored_step: int, validates_again: bool = True) -> None:
        """Prepare for a run that goes on after `restored_step` (0: from scratch): later records are dropped.

        Args:
            validates_again: the run starts with a validation, so the old one at `restored_step` is dropped, too.
        """
        for path in _numbered(self.folder):
            lines = path.read_bytes().splitlines(keepends=True)
            kept = [line for line in lines if restored_step and _stays(line, restored_step, validates_again)]
            if not kept:
                path.unlink()
            elif len(kept) < len(lines):
                write_file(path, b"".join(kept))
        for step, path in logged_rows(self.folder).items():
            if step > restored_step:
                path.unlink()

    def write(self, records: Iterable[Record]) -> None:
        """Append these records."""
        lines = [line for record in records for line in self._lines(record)]
        fitting = [line for line in lines if len(line) <= self.file_bytes]
        if len(fitting) < len(lines):
            size = f"{self.file_bytes / 1e6:g} MB"
            left_out = len(lines) - len(fitting)
            logger.warning("%d records are longer than mas.trajectory_log.file_mb (%s): left out", left_out, size)
        if fitting:
            self.folder.mkdir(parents=True, exist_ok=True)
        total = sum(map(len, fitting))
        blocks = [b"".join(fitting)] if 0 < total <= self.file_bytes else fitting
        for block in blocks:
            with open(self._file_for(len(block)), "ab") as file:
                file.write(block)

    def _lines(self, record: Record) -> list[bytes]:
        whole = encode_line(record)
        if len(whole) <= self.file_bytes:
            return [whole]
        rest: Mapping[str, Any] = {**record, "trajectories": [], "tools": []}
        parts = [{**record, "calls": []}, *({**rest, "calls": [call]} for call in record["calls"])]
        return [encode_line(part) for part in parts]

    def _file_for(self, size: int) -> Path:
        """The file that takes `size` more bytes: the last one, or a new one, for which the oldest may have to go."""
        paths = _numbered(self.folder)
        if paths and paths[-1].stat().st_size + size <= self.file_bytes:
            return paths[-1]
        for path in paths[: max(0, len(paths) - self.files + 1)]:
            self._drop(path)
        return self.folder / f"{int(paths[-1].stem) + 1 if paths else 1:06d}.jsonl"

    def _drop(self, path: Path) -> None:
        """Remove the oldest file, and the rows of steps before its last one, which may go on in the next file."""
        last = max((record["step"] for record in read_log(path) if _is_record(record)), default=0)
        path.unlink()
        for step, rows in logged_rows(self.folder).items():
            if step < last:
                rows.unlink()


def logged_rows(folder: Path) -> dict[int, Path]:
    """Step -> the file of its rows, of a run's log."""
    found = {
        path.name.removeprefix("step_").removesuffix(".json.gz"): path
        for path in (folder / ROWS).parent.glob("step_*.json.gz")
    }
    return {int(step): path for step, path in found.items() if step.isdigit()}


def log_files(path: str | Path) -> list[Path]:
    """The files with the records of a run or an evaluation, oldest first.

    Args:
        path: folder of a run or an evaluation, folder of a run's log, or one file.

    Raises:
        FileNotFoundError: there are none; says where they are looked for.
    """
    path = Path(path)
    if path.is_file():
        return [path]
    if (path / EVALUATION_FILE).is_file():
        return [path / EVALUATION_FILE]
    for folder in (path, path / FOLDER, path / VALIDATION_FOLDER):
        if found := _numbered(folder):
            return found
    raise FileNotFoundError(
        f"{path} holds no trajectory log: expected a file of one, a folder with {FOLDER}/000001.jsonl, or an "
        f"evaluation's folder with {EVALUATION_FILE}. Remedy: the folder of a run (trainer.default_local_dir) with "
        "mas.trajectory_log.train_questions above 0, or of an evaluation (evaluate.output)"
    )


def read_records(path: str | Path) -> Iterator[dict[str, Any]]:
    """Records of a log (see `log_files`) in order; lines that a kill cut short are skipped."""
    for file in log_files(path):
        yield from (record for record in read_log(file) if _is_record(record))


def _numbered(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("*.jsonl") if path.stem.isdigit()), key=lambda path: int(path.stem))


def _stays(line: bytes, restored_step: int, validates_again: bool) -> bool:
    record = parse_line(line)
    if record is None or not _is_record(record):
        return False
    return record["step"] < restored_step + (0 if record["phase"] == "val" and validates_again else 1)


def _is_record(value: Mapping[str, Any]) -> bool:
    return value.keys() >= Record.__required_keys__
