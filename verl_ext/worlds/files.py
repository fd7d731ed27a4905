"""Generated data sets on disk: written once for the same arguments, whole or not at all."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

Rows = list[dict]


def stamped_folder(
    target: Path, stamp: dict, stamp_name: str, names: Sequence[str], contents: Callable[[], dict[str, Rows]]
) -> Path:
    """Make sure that `target` holds the files `names` made with the arguments `stamp`; make them only if it does not.

    Safe against being killed at any moment: files are written aside and renamed, the stamp last, so that a half-done
    folder has no stamp and is made anew by the next call. Other files in `target` are left alone.

    Args:
        contents: makes the rows of each file; `.parquet` and `.jsonl` by name.

    Returns: `target`.
    """
    if _read_stamp(target / stamp_name) == stamp and all((target / name).is_file() for name in names):
        return target
    files = contents()
    target.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target))
    try:
        for name in names:
            _write(files[name], aside / name)
        (aside / stamp_name).write_text(json.dumps(stamp), encoding="utf-8")
        (target / stamp_name).unlink(missing_ok=True)
        for name in (*names, stamp_name):
            os.replace(aside / name, target / name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _read_stamp(path: Path) -> dict | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def _write(rows: Rows, path: Path) -> None:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), path)
