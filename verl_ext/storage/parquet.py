"""Questions as verl's data loader reads them: parquet files of rows like this one.

{"data_source": "hotpotqa", "prompt": [{"role": "user", "content": "Who is older?"}], "ability": "qa",
 "reward_model": {"style": "rule", "ground_truth": {"target": ["Ada"]}},
 "extra_info": {"index": 0, "split": "train", "id": "5a76", "question": "Who is older?"}}
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_ext.storage.files import replacing


def question_row(
    source: str,
    question: str,
    ground_truth: Mapping[str, Any],
    ability: str,
    split: str,
    index: int,
    id: str | None = None,
    **extra: Any,
) -> dict[str, Any]:
    """One row.

    Args:
        source: name of the data set; rewards and reports are chosen by it.
        index: position in its file; sampling noise depends on it.
        id: identifier of the question; SPLIT-INDEX by default.
        extra: further fields of `extra_info`.
    """
    about = {"index": index, "split": split, "id": id or f"{split}-{index}", "question": question}
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": question}],
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": dict(ground_truth)},
        "extra_info": {**about, **extra},
    }


def rows_schema(ground_truth: Mapping[str, Any], extra: Mapping[str, Any] | None = None) -> Any:
    """Arrow schema of such rows; needed where a list may be empty in all rows, which Arrow cannot infer the type of.

    Args:
        ground_truth: fields of `ground_truth` with their types: `str`, or `[str]` for a list of texts.
        extra: fields of `extra_info` besides index, split, id and question.
    """
    import pyarrow as pa

    def typed(fields: Mapping[str, Any]) -> dict[str, Any]:
        return {name: pa.string() if kind is str else pa.list_(pa.string()) for name, kind in fields.items()}

    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    about = {"index": pa.int64(), **typed({"split": str, "id": str, "question": str, **(extra or {})})}
    truth = pa.struct([("style", pa.string()), ("ground_truth", pa.struct(list(typed(ground_truth).items())))])
    return pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", pa.list_(message)),
            ("ability", pa.string()),
            ("reward_model", truth),
            ("extra_info", pa.struct(list(about.items()))),
        ]
    )


def write_parquet(rows: Sequence[Mapping[str, Any]], path: Path, schema: Any = None) -> None:
    """Write rows whole or not at all. Without a schema, Arrow infers one.

    Raises:
        ValueError: a text is no Unicode (half of a surrogate pair); names the row.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pa.Table.from_pylist(list(rows), schema=schema)
    except UnicodeEncodeError as error:
        number = next(number for number, row in enumerate(rows) if not _is_unicode(row))
        raise ValueError(
            f"{path}, row {number}: a text has half of a surrogate pair, which is no character: {error.object!r:.200}. "
            "Remedy: correct or leave out the row"
        ) from error
    with replacing(path) as new:
        pq.write_table(table, new)


def _is_unicode(row: Mapping[str, Any]) -> bool:
    try:
        json.dumps(row, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return False
    return True


def split_files(
    row: Callable[[Any, str, int], dict[str, Any]], **splits: Sequence[Any]
) -> dict[str, list[dict[str, Any]]]:
    """The rows of SPLIT.parquet for each split; `row` takes a question, its split and its position in the file."""
    return {f"{split}.parquet": [row(one, split, i) for i, one in enumerate(asked)] for split, asked in splits.items()}


def write_files(files: Mapping[str, Sequence[Mapping[str, Any]]], folder: Path, schema: Any) -> dict[str, int]:
    """Write the files that have rows; returns their numbers of rows."""
    for name, rows in files.items():
        if rows:
            write_parquet(rows, folder / name, schema)
    return {name: len(rows) for name, rows in files.items() if rows}


def held_out(text: str) -> bool:
    """Whether a text belongs to validation: a fixed fifth of all texts does, by a checksum."""
    return zlib.crc32(text.encode()) % 5 == 0
