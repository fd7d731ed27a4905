"""From tasks that take tools to train.parquet and test.parquet, with the files that the tools need beside them.

One row of the parquet files:

    {"data_source": "tmdb", "prompt": [{"role": "user", "content": "Who was the lead actor in …?"}],
     "reward_model": {"ground_truth": {"target": [], "path": '["GET /search/movie", "GET /movie/{movie_id}/credits"]'}},
     "extra_info": {"index": 0, "id": "tmdb-001", "tools": ["GET /search/movie", "GET /search/person", …], …}}

`path` is the JSON list of the gold calls: names, or {"name", "arguments"} where the data set gives the arguments.
`target` holds the accepted answers; it is empty where success is the path. `tools` are those that the benchmark itself
shows for the task, gold ones among distractors; empty where it shows none, so that the agent must search.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_ext.arguments import exit_status
from verl_ext.data_prep.rows import divided, named, print_left, print_written
from verl_ext.storage.jsonl import write_rows
from verl_ext.storage.parquet import question_row, rows_schema, split_files, write_files


@dataclass(frozen=True)
class ToolTask:
    """A task: gold calls (names, or {"name", "arguments"}), accepted answers, and what its data set calls its part.

    shown: names of the tools that the benchmark shows for the task; None: those of the path are all there are.
    """

    id: str
    question: str
    path: Sequence[str | dict[str, Any]]
    answers: Sequence[str] = ()
    data_source: str = ""
    shown: Sequence[str] | None = None

    @property
    def gold(self) -> list[str]:
        """Names of the tools of the path, each once, in the order in which they are called."""
        return list(dict.fromkeys(call if isinstance(call, str) else call["name"] for call in self.path))

    @property
    def tools(self) -> list[str]:
        """Names of the tools that are shown (scenario 1)."""
        return self.gold if self.shown is None else list(dict.fromkeys(self.shown))


@dataclass
class Prepared:
    """What a data set gives.

    files: name -> rows of a .jsonl file, or the object of a .json file, that the tools of a recipe read. rejected: why
    a row is no task -> ids of those rows. notes: what else to print.
    """

    tasks: list[ToolTask] = field(default_factory=list)
    files: dict[str, Any] = field(default_factory=dict)
    rejected: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    read: int = 0

    def reject(self, reason: str, row: str) -> None:
        """Count a row that is no task."""
        self.rejected.setdefault(reason, []).append(row)

    def report(self) -> list[str]:
        """Lines that account for every row."""
        per_part = Counter(task.data_source for task in self.tasks)
        parts = ", ".join(f"{part} {count}" for part, count in per_part.items()) or "none"
        total = sum(map(len, self.rejected.values()))
        lines = [f"read {self.read} rows; tasks: {parts}; rejected: {total}"]
        for reason, rows in self.rejected.items():
            lines.append(f"  rejected, {reason}: {len(rows)} ({named(rows)})")
        return lines + self.notes


def verl_row(task: ToolTask, split: str, index: int) -> dict[str, Any]:
    """One row of verl's parquet. index: position in its file."""
    truth = {"target": list(task.answers), "path": json.dumps(list(task.path), ensure_ascii=False)}
    return question_row(task.data_source, task.question, truth, "tools", split, index, task.id, tools=task.tools)


def divide(tasks: Sequence[ToolTask], test_size: int | None, seed: int) -> tuple[list[ToolTask], list[ToolTask]]:
    """(training tasks, test tasks): all are test tasks, or `test_size` of them, chosen by a hash of seed and id.

    Raises:
        ValueError: `test_size` is out of range, or an id is given twice.
    """
    twice = [task_id for task_id, count in Counter(task.id for task in tasks).items() if count > 1]
    if twice:
        raise ValueError(f"{len(twice)} ids are those of several tasks, e.g. {twice[:3]}; ids must be unique.")
    if test_size is None:
        return [], list(tasks)
    if not 0 <= test_size <= len(tasks):
        raise ValueError(f"--test_size must be between 0 and {len(tasks)}, the number of tasks; given {test_size}.")
    return divided(tasks, test_size, seed)


def write(prepared: Prepared, output: Path, test_size: int | None, seed: int) -> dict[str, int]:
    """Write the parquet files and what the tools need. Returns rows per written file, 0 for one without rows."""
    if not prepared.tasks:
        raise ValueError(f"{'; '.join(prepared.report())}; nothing is left. Check the file or folder that was given.")
    train, test = divide(prepared.tasks, test_size, seed)
    schema = rows_schema({"target": [str], "path": str}, {"tools": [str]})
    written = write_files(split_files(verl_row, train=train, test=test), output, schema)
    for name, content in prepared.files.items():
        rows = write_rows(output / name, content if isinstance(content, list) else [content])
        written[name] = rows if isinstance(content, list) else 0
    return written


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of every data set with tools."""
    parser.add_argument("--output_dir", type=Path, required=True, help="folder of everything that is written")
    parser.add_argument("--local_dataset_path", type=Path, help="file or folder instead of the data set's own place")
    parser.add_argument("--test_size", type=int, help="rows of test.parquet, the others train; without it all are test")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of the test rows")


def run(prepare: Callable[[argparse.Namespace], Prepared], arguments: argparse.Namespace) -> int:
    """Prepare and write a data set, and print a report. Returns the exit status."""

    def work() -> None:
        prepared = prepare(arguments)
        written = write(prepared, arguments.output_dir, arguments.test_size, arguments.seed)
        print("\n".join(prepared.report()))
        print_written(arguments.output_dir, written)
        print_left(arguments.output_dir, written)

    return exit_status(work)
