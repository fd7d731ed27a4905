"""Checks of data files: they have verl's schema, and every row has a question and a unique number."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

SCRIPTS = "see data_prep/ for scripts that write it"


class TooFewQuestions(ValueError):
    """The files are as they should be, but do not fill a batch."""


def check_data(config: DictConfig) -> None:
    """Check that the data files exist, are parquet files in verl's schema, and fill at least one batch.

    Raises:
        ValueError: names the file, what is wrong with it, and the remedy; `TooFewQuestions` for the last.
    """
    from verl_ext.trainer.build import build_workflow
    from verl_ext.trainer.config import read_mas_config

    data, truth = config.data, "mas" in config and build_workflow(read_mas_config(config)).needs_truth
    rows = check_files(files_of(data.train_files, "data.train_files"), truth)
    if not check_files(files_of(data.val_files, "data.val_files"), truth):
        raise TooFewQuestions("data.val_files hold no question. Remedy: some rows, e.g. those of data.train_files")
    limit = data.get("train_max_samples", -1)
    rows = min(rows, limit) if limit > 0 else rows
    if rows < data.train_batch_size:
        raise TooFewQuestions(
            f"data.train_files hold {rows} questions, fewer than data.train_batch_size={data.train_batch_size}: there "
            "would be no training step. Remedy: more data or a smaller batch"
        )


def files_of(value: Any, name: str) -> list[str]:
    """The files of `data.train_files` or `data.val_files`.

    Raises:
        ValueError: there are none, or they are no texts.
    """
    if not value:
        raise ValueError(f"{name} is not set: give one parquet file or a list of them")
    files = listed(value) if isinstance(value, str) or OmegaConf.is_list(value) else [value]
    if not all(isinstance(path, str) for path in files):
        raise ValueError(f"{name}={value} must be one parquet file or a list of them")
    return files


def listed(value: Any) -> list[str]:
    """One path, a list of them, or none."""
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def parquet_rows(files: Any) -> int | None:
    """Rows of local parquet files; None if one is absent, remote, or of another kind."""
    import pyarrow.parquet as pq

    try:
        return sum(pq.ParquetFile(Path(path).expanduser()).metadata.num_rows for path in listed(files))
    except (OSError, ValueError):
        return None


def check_files(paths: list[str], truth: bool = False) -> int:
    """Number of rows of local parquet files; remote and json files are left to verl and count as endless.

    Args:
        truth: each row must have a `reward_model.ground_truth`.

    Raises:
        ValueError: a file is missing, unreadable, or not in verl's schema; a row has no ground truth; or two rows have
            the same `data_source` and `extra_info.index`, from which sampling noise and the order of rows are derived.
    """
    local = [path for path in paths if "://" not in path and not path.endswith((".json", ".jsonl"))]
    owners: dict[tuple[Any, Any], str] = {}
    for path in local:
        for source, index in _check_file(path, truth):
            if owner := owners.get((source, index)):
                raise ValueError(
                    f"{path}: the row with extra_info.index {index} of data_source {source!r} is also in {owner}; "
                    "sampling noise depends on both. Remedy: number the rows of all files of a data source differently"
                )
            owners[source, index] = path
    return len(owners) if len(local) == len(paths) else 1 << 62


def _check_file(path: str, truth: bool) -> list[tuple[Any, Any]]:
    """data_source and extra_info.index of each row."""
    import pyarrow.parquet as pq

    if not os.path.isfile(Path(path).expanduser()):
        raise ValueError(
            f"the data file {path} does not exist, or may not be read.\n"
            "Remedy: point data.train_files / data.val_files to files that do, "
            "write them (data_prep/ has a script per data set), or leave both out if the recipe brings its own"
        )
    try:
        table = pq.ParquetFile(Path(path).expanduser())
    except Exception as error:
        raise ValueError(f"{path} cannot be read as parquet ({error}). Remedy: write it again") from None
    schema = table.schema_arrow
    if missing := [name for name in ("prompt", "reward_model", "extra_info") if name not in schema.names]:
        raise ValueError(
            f"{path} lacks the column(s) {', '.join(missing)} of verl's schema; it has {', '.join(schema.names)}. "
            f"Remedy: {SCRIPTS}"
        )
    info = schema.field("extra_info").type
    if not hasattr(info, "get_field_index") or info.get_field_index("index") < 0:
        raise ValueError(
            f"{path}: extra_info has no field index (its type is {info}). Remedy: write the row's number; {SCRIPTS}"
        )
    wanted = ("prompt", "extra_info.index", "data_source", *(["reward_model.ground_truth"] if truth else []))
    columns = [name for name in wanted if name.partition(".")[0] in schema.names]
    found: list[tuple[Any, Any]] = []
    for batch in table.iter_batches(columns=columns):
        for row in batch.to_pylist():
            place, index = f"{path}, row {len(found)}", (row["extra_info"] or {}).get("index")
            _check_question(row["prompt"], place)
            if truth and (row.get("reward_model") or {}).get("ground_truth") is None:
                raise ValueError(
                    f"{place}: reward_model has no ground_truth, which the reward of this system is computed from. "
                    "Remedy: write it, or leave out the row"
                )
            found.append((row.get("data_source"), _whole(index, place)))
    return found


def _whole(index: Any, place: str) -> int:
    try:
        number = int(index)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or (isinstance(index, float) and number != index):
        raise ValueError(f"{place}: extra_info must have an index, a whole number, but is {index!r}")
    return number


def _check_question(prompt: Any, place: str) -> None:
    """Refuse a row whose last message has no text: a chat template would write "None"."""
    last = prompt[-1] if isinstance(prompt, list) and prompt else None
    content = last.get("content") if isinstance(last, dict) else None
    if not isinstance(content, str) or not content.strip():
        raise ValueError(
            f"{place}: prompt must be a list of messages with a content, the last one being the question, but is "
            f"{prompt!r:.200}. Remedy: correct or leave out the row"
        )
