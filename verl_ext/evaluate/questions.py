"""Rows of the data files as tasks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from verl_ext.mas.types import Task
from verl_ext.trainer.preflight.data import check_files, files_of


def read_tasks(val_files: Any, max_questions: int | None = None, truth: bool = False) -> list[Task]:
    """The questions of `data.val_files`, in the files' order.

    Args:
        val_files: one parquet file in verl's schema, or several.
        max_questions: at most so many of each data source, the first ones; None: all.
        truth: each row must have a ground truth.

    Raises:
        ValueError: no file, one that is missing or not in verl's schema, or a row without a prompt, an index, or the
            ground truth that it must have.
    """
    paths = files_of(val_files, "data.val_files")
    strange = [path for path in paths if "://" in path or not path.endswith(".parquet")]
    if strange:
        raise ValueError(
            f"data.val_files: {', '.join(strange)}: an evaluation reads local .parquet files. "
            "Remedy: copy or write them so; data_prep/ has a script per data set"
        )
    check_files(paths, truth)
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
    return Task(
        question=row["prompt"][-1]["content"],  # there is one: `check_files`
        ground_truth=_ground_truth(row["reward_model"], where),
        data_source=str(row.get("data_source", "unknown")),
        index=int(row["extra_info"]["index"]),  # a whole number: `check_files`
        extra=row["extra_info"],
    )


def _ground_truth(reward_model: Any, where: str) -> Any:
    if reward_model is not None and not isinstance(reward_model, dict):
        raise ValueError(f"{where}: reward_model must have a field ground_truth, but is {reward_model!r:.200}")
    return (reward_model or {}).get("ground_truth")
