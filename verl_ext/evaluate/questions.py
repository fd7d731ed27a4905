"""Rows of the data files as tasks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from verl_ext.mas.types import Task
from verl_ext.trainer.preflight.data import check_files, files_of


def read_tasks(val_files: Any, max_questions: int | None = None) -> list[Task]:
    """The questions of `data.val_files`, in the files' order.

    Args:
        val_files: one parquet file in verl's schema, or several.
        max_questions: at most so many of each data source, the first ones; None: all.

    Raises:
        ValueError: no file, one that is missing or not in verl's schema, or a row without a prompt or index.
    """
    paths = files_of(val_files, "data.val_files")
    strange = [path for path in paths if "://" in path or not path.endswith(".parquet")]
    if strange:
        raise ValueError(
            f"data.val_files: {', '.join(strange)}: an evaluation reads local .parquet files. "
            "Remedy: copy or write them so; data_prep/ has a script per data set"
        )
    check_files(paths)
    kept: Counter[str] = Counter()
    tasks = []
    for path in paths:
        for number, row in enumerate(_rows(path)):
            task = _task(row, f"{path}, row {number}")
            kept[task.data_source] += 1
            if max_questions is None or kept[task.data_source] <= max_questions:
                tasks.append(task)
    if not tasks:
        raise ValueError(f"data.val_files: {', '.join(paths)} hold no question")
    return tasks


def _rows(path: str) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    wanted = ("data_source", "prompt", "reward_model", "extra_info")
    file = pq.ParquetFile(Path(path).expanduser())
    return file.read(columns=[name for name in wanted if name in file.schema_arrow.names]).to_pylist()


def _task(row: dict[str, Any], where: str) -> Task:
    """Make the task as a rollout worker does in training, so that seeds and prompts are the same."""
    try:
        index = int(row["extra_info"]["index"])
    except (TypeError, KeyError, ValueError) as error:
        given = f"{row['extra_info']!r:.200}"
        raise ValueError(f"{where}: extra_info must have an index, a whole number, but is {given}") from error
    return Task(
        question=row["prompt"][-1]["content"],  # there is one: `check_files`
        ground_truth=(row["reward_model"] or {}).get("ground_truth"),
        data_source=str(row.get("data_source", "unknown")),
        index=index,
        extra=row["extra_info"],
    )
