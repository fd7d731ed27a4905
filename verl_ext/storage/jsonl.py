"""JSON lines: files with one JSON value per line.

for where, row in read_rows("tools.jsonl", 'an object with "name"'):     data: every line must be right
for record in read_log("metrics.jsonl"):                                 a log: damaged lines are skipped
append("metrics.jsonl", [{"step": 1}])
write_rows("tools.jsonl", [{"name": "add"}])                              a new file, whole or not at all
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from verl_ext.storage.files import writing


class LineError(ValueError):
    """A line of a file is wrong; the message begins with FILE:LINE, and says what is expected."""

    def __init__(self, path: Path, line: int, problem: str) -> None:
        super().__init__(path, line, problem)  # all of them: Ray pickles errors, and makes them again of `args`
        self.path, self.line, self.problem = path, line, problem

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.problem}"


def read_rows(path: str | Path, expected: str = "a JSON object") -> Iterator[tuple[str, dict[str, Any]]]:
    """("FILE:LINE", object) of every line of a .jsonl or .jsonl.gz file; blank lines are skipped.

    Args:
        expected: what a line must be, for messages.

    Raises:
        LineError: a line is no JSON object. That includes a last line that was cut short.
        ValueError: the file is missing, or its compressed data is damaged.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} does not exist, or is no file; correct the path")
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # broken JSON, broken UTF-8, or a thousand brackets
            raise LineError(path, number, f"not valid JSON ({error}); expected {expected}") from error
        if not isinstance(row, dict):
            raise LineError(path, number, f"given {type(row).__name__} {row!r:.80}, expected {expected}")
        yield f"{path}:{number}", row


def write_rows(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write a .jsonl file, which appears whole or not at all; returns the number of rows."""
    number = 0
    with writing(path, "wb") as out:
        for row in rows:  # a lone surrogate, which UTF-8 cannot hold, as JSON's escape
            out.write(json.dumps(row, ensure_ascii=False).encode(errors="backslashreplace") + b"\n")
            number += 1
    return number


def read_log(path: str | Path) -> Iterator[dict[str, Any]]:
    """The objects of a log in order. A line that a kill cut short, or that is damaged, is skipped.

    A log that does not exist is empty.
    """
    try:
        with open(path, "rb") as file:
            yield from (row for row in map(parse_line, file) if row is not None)
    except FileNotFoundError:
        return


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The object of a log's line; None if the line is no object, or has no line break because a kill cut it short.

    NaN and infinity, which are no JSON, become None.
    """
    try:
        row = json.loads(line, parse_constant=lambda _: None) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def encode_line(row: Mapping[str, Any]) -> bytes:
    """A row as one line, in ASCII: no text in it can break the line. ValueError for NaN and infinity."""
    return json.dumps(row, allow_nan=False).encode() + b"\n"


def append(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows to a log; they are with the operating system when this returns.

    What a kill cut short before is removed first, so that the new rows begin on a line of their own.
    """
    with open(path, "a+b") as file:
        cut_torn_line(file.name)
        file.write(b"".join(map(encode_line, rows)))


def cut_torn_line(path: str | Path) -> None:
    """Cut a file back to its last line break."""
    with open(path, "rb+") as file:
        end = file.seek(0, os.SEEK_END)
        start = end
        while start:
            size = min(start, 1 << 16)
            start = file.seek(start - size)
            found = file.read(size).rfind(b"\n")
            if found >= 0:
                start += found + 1
                break
        if start < end:
            file.truncate(start)


def _lines(path: Path) -> Iterator[bytes]:
    with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as source:
        try:
            yield from source
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} cannot be read to its end ({error}); fetch or write it again.") from error
