"""Generated data sets on disk: written once for the same arguments, whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_ext.storage.jsonl import read_rows
from verl_ext.storage.parquet import write_parquet

Rows = list[dict[str, Any]]


def draw_distinct(draw: Callable[[int], Any], size: int, tries: int) -> list[Any]:
    """`size` questions of different `text`, or fewer if `tries` draws give no more; `draw` takes how many there are."""
    found: dict[str, Any] = {}
    for _ in range(tries):
        if len(found) == size:
            break
        question = draw(len(found))
        found.setdefault(question.text, question)
    return list(found.values())


def split_files(
    row: Callable[[Any, str, int], dict[str, Any]], train: Sequence[Any], val: Sequence[Any]
) -> dict[str, Rows]:
    """train.parquet and val.parquet of these questions; `row` takes a question, its split and its number."""
    splits = {"train": train, "val": val}
    return {f"{split}.parquet": [row(one, split, i) for i, one in enumerate(asked)] for split, asked in splits.items()}


def stamped_folder(
    folder: str | Path,
    stamp: Mapping[str, Any],
    stamp_name: str,
    names: Sequence[str],
    contents: Callable[[], Mapping[str, Rows]],
) -> Path:
    """Make sure that `folder` holds the files `names` made with the arguments `stamp`; make them only if it does not.

    Safe against being killed at any moment: files are written aside and renamed, the stamp last, so that an incomplete
    folder has no stamp and the next call makes its files again. Other files in `folder` are left alone.

    Args:
        stamp: arguments of the generator, and the version of its code.
        stamp_name: JSON file that holds the stamp.
        contents: makes the rows of each file; the suffix of its name, `.parquet` or `.jsonl`, chooses the format.

    Returns: `folder`.
    """
    target = Path(folder)
    if _read_stamp(target / stamp_name) == stamp and all((target / name).is_file() for name in names):
        return target
    files = contents()
    target.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target))
    try:
        for name in names:
            if name.endswith(".parquet"):
                write_parquet(files[name], aside / name)
            else:
                lines = (json.dumps(row) + "\n" for row in files[name])
                (aside / name).write_text("".join(lines), encoding="utf-8")
        (aside / stamp_name).write_text(json.dumps(stamp), encoding="utf-8")
        (target / stamp_name).unlink(missing_ok=True)
        for name in (*names, stamp_name):
            os.replace(aside / name, target / name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _read_stamp(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def read_made(path: str | Path, world: str) -> Rows:
    """The rows of a .jsonl file of a world. Raises ValueError with the command that makes the file."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} does not exist. Remedy: python -m verl_ext.worlds {world} --output_dir {path.parent}")
    return [row for _, row in read_rows(path)]
