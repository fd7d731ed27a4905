"""Generated data sets on disk: written once for the same arguments, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_ext.storage.files import write_file
from verl_ext.storage.jsonl import read_rows, write_rows
from verl_ext.storage.parquet import write_parquet

Rows = list[dict[str, Any]]


def draw_distinct(draw: Callable[[int], Any], size: int, name: str) -> list[Any]:
    """`size` questions of different `text`; `draw` takes how many there are.

    Args:
        name: of the size, for the error.

    Raises:
        ValueError: there are not that many, or fewer than one is wanted.
    """
    if size < 1:
        raise ValueError(f"{name}={size}: at least 1")
    found: dict[str, Any] = {}
    for _ in range(50 * size + 1000):
        question = draw(len(found))
        found.setdefault(question.text, question)
        if len(found) == size:
            return list(found.values())
    raise ValueError(f"{name}={size}: only {len(found)} different questions were found; choose at most that many")


def stamped_folder(
    folder: str | Path, stamp_name: str, names: Sequence[str], contents: Callable[[], Mapping[str, Rows]], **stamp: Any
) -> Path:
    """Make sure that `folder` holds the files `names` made with the arguments `stamp`; make them only if it does not.

    Safe against being killed at any moment: the stamp goes first and comes last, so that an incomplete folder has no
    stamp and the next call makes its files again. Other files in `folder` are left alone.

    Args:
        stamp_name: JSON file that holds the stamp.
        contents: makes the rows of each file; the suffix of its name, `.parquet` or `.jsonl`, chooses the format.
        stamp: arguments of the generator, and the version of its code.

    Returns: `folder`.
    """
    target = Path(folder)
    if _read_stamp(target / stamp_name) == stamp and all((target / name).is_file() for name in names):
        return target
    files = contents()
    (target / stamp_name).unlink(missing_ok=True)
    for name in names:
        if name.endswith(".parquet"):
            write_parquet(files[name], target / name)
        else:
            write_rows(target / name, files[name])
    write_file(target / stamp_name, json.dumps(stamp))
    return target


def _read_stamp(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def read_made(path: str | Path, world: str) -> Rows:
    """The rows of a .jsonl file of a world. Raises ValueError with the command that makes the file."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} does not exist. Remedy: python -m verl_ext.worlds {world} --output_dir {path.parent}")
    return [row for _, row in read_rows(path)]
