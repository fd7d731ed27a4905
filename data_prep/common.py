"""What the scripts of this folder share: reading files of any layout, checking fields, writing verl's parquet.

Rows are read with a `where` ("FILE:LINE" or "FILE row N"), so that every error names the row.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = tuple[str, dict[str, Any]]
SUFFIXES = (".json", ".jsonl", ".parquet")
SPLIT_WORDS = {"train": "train", "dev": "validation", "val": "validation", "valid": "validation", "test": "test"}
SPLIT_WORDS["validation"] = "validation"


def split_of(name: str) -> str | None:
    """train | validation | test when one of their words stands in a file name or split label, else None."""
    words = re.split(r"[^a-z]+", name.lower())
    return next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), None)


def read_rows(path: Path) -> Iterator[Row]:
    """Rows of a .jsonl, .json (a list, or {"data": list}) or .parquet file. Raises ValueError with file and row."""
    if path.suffix == ".parquet":
        yield from _read_parquet(path)
        return
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: given suffix {path.suffix!r}, expected one of {list(SUFFIXES)}.")
    with open(path, "rb") as source:
        first = source.read(64).lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
        source.seek(0)
        if path.suffix == ".json" and first == b"[":
            rows: Any = _parse(source.read(), str(path))
        elif path.suffix == ".json" and first == b"{":
            yield from _read_object(path, source.read())
            return
        else:
            for number, line in enumerate(source, 1):
                if line.strip():
                    yield checked_row(f"{path}:{number}", _parse(line, f"{path}:{number}"))
            return
    for number, row in enumerate(rows, 1):
        yield checked_row(f"{path} row {number}", row)


def checked_row(where: str, row: Any) -> Row:
    """(where, row), or a ValueError when the row is not an object."""
    if not isinstance(row, dict):
        raise ValueError(f"{where}: given {type(row).__name__}, expected an object with the fields of one question.")
    return where, row


def find_files(path: Path, exclude: str = r"(?!)") -> list[tuple[Path, str | None]]:
    """Data files with their split: `path` itself, or those of a folder (recursive) whose names tell a split.

    A file's own name counts first, then that of the folder it lies in (the hub's default/train/0000.parquet).
    exclude: regular expression; files of a folder whose relative path matches are left out, as are test files (their
    answers are not public). Raises ValueError when there is nothing to read.
    """
    if path.is_file():
        return [(path, split_of(path.stem))]
    if not path.is_dir():
        raise ValueError(f"--local_dataset_path {path} does not exist; give a file or folder, or leave it out (hub).")
    files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)
    kept = [file for file in files if not re.search(exclude, file.relative_to(path).as_posix())]
    splits = [(file, split_of(file.stem) or split_of(file.parent.name)) for file in kept]
    found = [(file, split) for file, split in splits if split in ("train", "validation")]
    if not found:
        names = [file.relative_to(path).as_posix() for file in files[:10]]
        raise ValueError(
            f"{path} holds no data file whose name, or whose folder's name, contains train, dev or validation "
            f"({names}); rename the files or give one file."
        )
    return found


def read_hub(name: str, config: str | None, split: str) -> Iterator[Row]:
    """Rows of one split of a data set on the Hugging Face hub. Raises ValueError when it cannot be fetched."""
    from datasets import load_dataset

    try:
        rows = load_dataset(name, config, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name} ({split}) could not be loaded from the hub: {(str(error) or repr(error)).splitlines()[0]:.200}. "
            "Check the connection, or download the files and pass --local_dataset_path FILE_OR_FOLDER."
        ) from error
    for number, row in enumerate(rows, 1):
        yield checked_row(f"{name} {split} row {number}", row)


def text_field(row: dict[str, Any], name: str, where: str) -> str:
    """A string field, stripped. Raises ValueError naming row, field, what was given and what is expected."""
    value = row.get(name)
    if not isinstance(value, str):
        given = f"{type(value).__name__} {value!r:.80}" if name in row else f"no such field among {sorted(row)}"
        raise ValueError(f"{where}: field '{name}': given {given}, expected a string.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where}: field '{name}': given a broken character ({error}), expected valid text."
        ) from error
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
    """`value`, or what it encodes when it is the JSON text of a list or object (some parquet copies store it so)."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def rows_schema(truth: Mapping[str, Any], extra: Mapping[str, Any]) -> Any:
    """Arrow schema of verl's parquet; explicit, so that empty lists keep their type.

    Args:
        truth: fields of `ground_truth`, with their Arrow types.
        extra: fields of `extra_info` besides index, split, id and question.
    """
    import pyarrow as pa

    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    known = {"index": pa.int64(), "split": pa.string(), "id": pa.string(), "question": pa.string()}
    right = pa.struct([("style", pa.string()), ("ground_truth", pa.struct(list(truth.items())))])
    return pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", pa.list_(message)),
            ("ability", pa.string()),
            ("reward_model", right),
            ("extra_info", pa.struct([*known.items(), *extra.items()])),
        ]
    )


def qa_rows_schema() -> Any:
    """Arrow schema of verl's parquet for question answering."""
    import pyarrow as pa

    strings = pa.list_(pa.string())
    return rows_schema({"target": strings}, {"gold_titles": strings})


def question_row(source: str, question: str, truth: Any, ability: str, split: str, index: int) -> dict[str, Any]:
    """One row of verl's parquet: a question, and what is right."""
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": question}],
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"index": index, "split": split, "id": f"{split}-{index}", "question": question},
    }


def exit_status(work: Callable[[], Any]) -> int:
    """Do a script's work: 0, or 2 where the user has given something wrong, which is said without a traceback."""
    try:
        work()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def say_written(folder: Path, written: Mapping[str, int]) -> None:
    """Print what a script has written: rows per file."""
    for name, count in written.items():
        print(f"wrote {folder / name}: {count} rows")


def write_parquet(rows: Sequence[dict[str, Any]], path: Path, schema: Any = None) -> None:
    """Write verl rows (of question answering, unless an Arrow schema is given); all of the file appears, or nothing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(list(rows), schema=schema or qa_rows_schema())
    _replace(path, lambda temporary: pq.write_table(table, temporary))


def write_jsonl(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write one JSON object per line; the file appears complete or not at all."""

    def write(temporary: Path) -> None:
        with open(temporary, "w", encoding="utf-8") as out:
            out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    _replace(path, write)


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _parse(text: bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:  # broken JSON or broken UTF-8
        raise ValueError(f"{where}: not valid JSON ({error}).") from error


def _read_object(path: Path, text: bytes) -> Iterator[Row]:
    """A .json file that begins with an object: {"data": [...]}, or one object per line under the wrong suffix."""
    try:
        whole = json.loads(text)
    except ValueError:
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                yield checked_row(f"{path}:{number}", _parse(line, f"{path}:{number}"))
        return
    rows = whole.get("data") if isinstance(whole.get("data"), list) else [whole]
    for number, row in enumerate(rows, 1):
        yield checked_row(f"{path} row {number}", row)


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        batches = pq.ParquetFile(path).iter_batches(batch_size=1024)
        number = 0
        for batch in batches:
            for row in batch.to_pylist():
                number += 1
                yield checked_row(f"{path} row {number}", row)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path}: not a readable parquet file ({error}).") from error
