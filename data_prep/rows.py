"""Read files of any layout, from a disk, the hub or a URL, and check the fields of their rows.

Each row comes with a `where` ("FILE:LINE" or "FILE row N"), so that every error names the row.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import http.client
import json
import re
import urllib.request
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_ext.storage import jsonl

Row = tuple[str, dict[str, Any]]
EXPECTED = "an object with the fields of one question"
SUFFIXES = (".json", ".jsonl", ".parquet", ".csv", ".json.gz", ".jsonl.gz")
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".tar", ".tgz")
SPLIT_WORDS = dict.fromkeys(("dev", "val", "valid", "validation"), "validation") | {"train": "train", "test": "test"}
FETCH_TIMEOUT_S = 60.0
REMEDY = "Check the connection, or download the files and pass --local_dataset_path FILE_OR_FOLDER."


def split_of(name: str) -> str | None:
    """train | validation | test if one of their words is in a file name or split label, else None."""
    words = re.split(r"[^a-z]+", name.lower())
    return next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), None)


# -- files ------------------------------------------------------------------------------------------------------------


def read_rows(path: Path) -> Iterator[Row]:
    """Rows of a .jsonl, .json (a list, or {"data": list}), both also .gz, .parquet or .csv (with a header) file.

    Raises:
        ValueError: the file cannot be read, or a row is no object; with file and row.
    """
    if not path.name.endswith(SUFFIXES):
        raise ValueError(f"{path}: given suffix {path.suffix!r}, expected one of {list(SUFFIXES)}.")
    if path.suffix == ".parquet":
        return _read_parquet(path)
    if path.suffix == ".csv":
        return _read_csv(path)
    return jsonl.read_rows(path, EXPECTED) if ".jsonl" in path.suffixes[-2:] else _read_json(path)


def _read_json(path: Path) -> Iterator[Row]:
    """A list, {"data": [...]}, one object, or one object per line under the wrong suffix."""
    try:
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read ({error}).") from error
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        if text.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"[":
            raise ValueError(f"{path}: not valid JSON ({error}).") from error
        return jsonl.read_rows(path, EXPECTED)
    if isinstance(whole, dict):
        whole = whole["data"] if isinstance(whole.get("data"), list) else [whole]
    return numbered(whole if isinstance(whole, list) else [whole], str(path))


def _read_csv(path: Path) -> Iterator[Row]:
    """Fields are texts; "" for a missing one."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from numbered(csv.DictReader(file, restval="", strict=True), str(path))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a readable csv file ({error}).") from error


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        batches = pq.ParquetFile(path).iter_batches(batch_size=1024)
        yield from numbered((row for batch in batches for row in batch.to_pylist()), str(path))
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path}: not a readable parquet file ({error}).") from error


def numbered(rows: Iterable[Any], name: str) -> Iterator[Row]:
    """Rows with "NAME row 1" and so on. Raises ValueError for a row that is no object."""
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ValueError(f"{name} row {number}: given {type(row).__name__}, expected {EXPECTED}.")
        yield f"{name} row {number}", row


def find_files(path: Path, exclude: str = r"(?!)") -> list[tuple[Path, str | None]]:
    """Data files with their split: `path` itself, or those of a folder (recursive) whose names tell a split.

    A file's own name counts first, then that of its folder (the hub's default/train/0000.parquet). Test files of a
    folder are left out, because their answers are not public.

    Args:
        exclude: regular expression; files whose path in the folder matches are left out.

    Raises:
        ValueError: there is nothing to read.
    """
    if path.is_file():
        return [(path, split_of(path.stem))]
    if not path.is_dir():
        raise ValueError(f"--local_dataset_path {path} does not exist; give a file or folder, or leave it out (hub).")
    files = data_files(path)
    kept = [file for file in files if not re.search(exclude, file.relative_to(path).as_posix())]
    splits = [(file, split_of(file.stem) or split_of(file.parent.name)) for file in kept]
    found: list[tuple[Path, str | None]] = [(file, split) for file, split in splits if split in ("train", "validation")]
    if not found:
        names = [file.relative_to(path).as_posix() for file in files[:10]]
        raise ValueError(
            f"{path} holds no data file whose name, or whose folder's name, contains train, dev or validation "
            f"({names}); rename the files or give one file."
        )
    read = {file for file, _ in found}
    if others := [file.relative_to(path).as_posix() for file in files if file not in read]:
        print(f"not read, as no training or validation data by their names: {named(others)}")
    return found


def data_files(folder: Path) -> list[Path]:
    """The files of a folder (recursive) that `read_rows` reads.

    Raises:
        ValueError: a packed file that it cannot read has the name of a split: without it rows would be lost.
    """
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    packed = [
        file for file in files if file.suffix in PACKED and not file.name.endswith(SUFFIXES) and split_of(file.stem)
    ]
    if packed:
        raise ValueError(f"{packed[0]} is packed, and would be left out. Remedy: unpack it, or move it away.")
    return [file for file in files if file.name.endswith(SUFFIXES)]


def named(names: Sequence[str], shown: int = 5) -> str:
    """The first names, and how many there are more."""
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")


def local_file(path: Path, names: Sequence[str]) -> Path:
    """`path` if it is a file, else the first of these names that exists in the folder. Raises ValueError."""
    if path.is_file():
        return path
    found = next((path / name for name in names if (path / name).is_file()), None)
    if found is None:
        raise ValueError(f"--local_dataset_path {path} holds none of {', '.join(names)}.")
    return found


# -- the hub and URLs -------------------------------------------------------------------------------------------------


def read_hub(name: str, config: str | None, split: str) -> Iterator[Row]:
    """Rows of one split of a data set on the Hugging Face hub. Raises ValueError if it cannot be fetched."""
    from datasets import load_dataset

    try:
        rows = load_dataset(name, config, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        problem = (str(error) or repr(error)).splitlines()[0]
        raise ValueError(f"{name} ({split}) could not be loaded from the hub: {problem:.200}. {REMEDY}") from error
    yield from numbered(rows, f"{name} {split}")


def fetch_json(url: str) -> Any:
    """The JSON document at a URL. Raises ValueError if it cannot be fetched, or is no JSON."""
    try:
        with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT_S) as response:
            return json.loads(response.read())
    except (http.client.HTTPException, OSError, ValueError, RecursionError) as error:  # URLError is an OSError
        raise ValueError(f"{url} could not be fetched: {error}. {REMEDY}") from error


# -- fields -----------------------------------------------------------------------------------------------------------


def text_field(row: dict[str, Any], name: str, where: str) -> str:
    """A string field, stripped. Raises ValueError."""
    value = row.get(name)
    if not isinstance(value, str):
        known = sorted(map(str, row))  # a csv's row with more cells than the header has a field None
        given = f"{type(value).__name__} {value!r:.80}" if name in row else f"no such field among {known}"
        raise ValueError(f"{where}: field '{name}': given {given}, expected a string.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}: field '{name}': given a broken character ({error}), expected text.") from error
    return value.strip()


def list_field(row: dict[str, Any], name: str, where: str, optional: bool = False) -> list[Any]:
    """A list field, given as a list or as its JSON text; optional: missing or null is []. Raises ValueError."""
    value = row.get(name)
    if value is None and optional:
        return []
    value = decoded(value)
    if not isinstance(value, list):
        raise ValueError(f"{where}: field '{name}': given {type(value).__name__} {value!r:.80}, expected a list.")
    return value


def decoded(value: Any) -> Any:
    """`value`, or what it encodes if it is the JSON text of a list or object, as in some parquet copies."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


# -- writing ----------------------------------------------------------------------------------------------------------


def divided(rows: Sequence[Any], size: int, seed: int) -> tuple[list[Any], list[Any]]:
    """(training rows, `size` held-out rows), both in order; chosen by a hash of seed and `id`, whatever the order."""
    order = sorted(rows, key=lambda row: hashlib.sha256(f"{seed}:{row.id}".encode()).hexdigest())
    held = {row.id for row in order[:size]}
    return [row for row in rows if row.id not in held], [row for row in rows if row.id in held]


def print_written(folder: Path, written: Mapping[str, int]) -> None:
    """Print the files that a script has written: rows per file, 0 for a file without rows."""
    for name, count in written.items():
        print(f"wrote {folder / name}{f': {count} rows' if count else ''}")


def print_left(
    folder: Path, written: Mapping[str, int], names: Sequence[str] = ("train.parquet", "test.parquet")
) -> None:
    """Print which of these files an earlier run has left: their rows may be in the files that were written, too."""
    for name in names:
        if name not in written and (folder / name).exists():
            print(f"not written, left from an earlier run: {folder / name}")
