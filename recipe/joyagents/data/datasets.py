"""The questions of JoyAgents-R1's reinforcement learning, and what its tools read.

Kinds and sizes are the paper's (Section 4.2): 100 training questions each for math, knowledge base, the shop's APIs and
other functions, 200 that take several specialists; 100 of each kind to test. GSM8K (https://github.com/openai/grade-
school-math, MIT) and ToolBench (toolbench.py) are real; the shop's data are a company's own and not public, so these
are generated (joyagents_questions.py).

One row, shortened:
    {"data_source": "cooperation", "prompt": [{"role": "user", "content": "I want to open 4 flagship shops for …"}],
     "reward_model": {"ground_truth": {"kind": "math", "target": ["360000"], "functions": []}}}

    python recipe/joyagents/data/datasets.py --output_dir data/joyagents
    python recipe/joyagents/data/datasets.py --output_dir data/joyagents --gsm8k FOLDER --toolbench FOLDER

Writes train.parquet, test.parquet, knowledge.jsonl (the knowledge base) and tools.jsonl (ToolBench's documents).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from verl_ext.data_prep import toolbench
from verl_ext.data_prep.common import (
    Row,
    exit_status,
    question_row,
    read_hub,
    read_rows,
    rows_schema,
    say_written,
    split_of,
    text_field,
    write_jsonl,
    write_parquet,
)
from verl_ext.data_prep.tool_tasks import Prepared, ToolTask, divide
from verl_ext.recipe.joyagents.data.questions import SPLITS, Asked, Asking, distinct, knowledge

SIZES = {
    "train": {"math": 100, "qa": 100, "shop": 100, "function": 100, "cooperation": 200},
    "test": {"math": 100, "qa": 100, "shop": 100, "function": 100, "cooperation": 100},
}
GSM8K = "openai/gsm8k"


def gsm8k(path: Path | None, split: str) -> list[Asked]:
    """GSM8K's questions with their worked solutions; path: a folder with files of both splits, None: the hub.

    Raises:
        ValueError: there is no such file, or a row is not GSM8K's.
    """
    found = []
    for where, row in _gsm8k_rows(path, split):
        question, solution = text_field(row, "question", where), text_field(row, "answer", where)
        thought, mark, answer = solution.rpartition("####")
        if not mark:
            raise ValueError(
                f"{where}: field 'answer': given {solution!r:.80}, expected a solution that ends in '#### N'."
            )
        found.append(Asked("math", question, answer=answer.strip().replace(",", ""), thought=thought.strip()))
    return found


def _gsm8k_rows(path: Path | None, split: str) -> list[Row]:
    if path is None:
        with _option("--gsm8k"):
            return list(read_hub(GSM8K, "main", split))
    files = [
        file for file in sorted(path.glob("*.json*")) + sorted(path.glob("*.parquet")) if split_of(file.stem) == split
    ]
    files = [file for file in files if "gsm8k" in file.stem.lower()] or files
    if not files:
        raise ValueError(f"--gsm8k {path}: a folder with a file whose name contains {split!r} is expected")
    return list(read_rows(files[0]))


def functions(path: Path | None, test_size: int, seed: int) -> tuple[dict[str, list[Asked]], Prepared]:
    """ToolBench's questions by split, and its documents; most take several APIs.

    Raises:
        ValueError: they cannot be read, or are too few.
    """
    with _option("--toolbench"):
        prepared = toolbench.prepare(argparse.Namespace(local_dataset_path=path, sets=[]))
    if len(prepared.tasks) < 2 * test_size:
        raise ValueError(
            f"--toolbench: {len(prepared.tasks)} questions were found, at least {2 * test_size} are needed"
        )
    train, test = (_asked(tasks) for tasks in divide(prepared.tasks, test_size, seed))
    held = {asked.text for asked in test}  # some questions stand under several numbers
    return {"train": [asked for asked in train if asked.text not in held], "test": test}, prepared


@contextmanager
def _option(name: str) -> Iterator[None]:
    """What is wrong in the words of another script, whose --local_dataset_path is this one's option `name`."""
    try:
        yield
    except ValueError as error:
        said = str(error).replace("--local_dataset_path", name)
        raise ValueError(said if name in said else f"{name}: {said}") from error


def _asked(tasks: Sequence[ToolTask]) -> list[Asked]:
    return [Asked("function", task.question, functions=tuple(map(str, task.path))) for task in tasks]


def questions(seed: int, math: dict[str, list[Asked]], calls: dict[str, list[Asked]], split: str) -> list[Asked]:
    """The questions of a split, kind after kind.

    Raises:
        ValueError: there are not enough.
    """
    asking, chosen = Asking(seed, split), []
    for kind, size in SIZES[split].items():
        given = {"math": math, "function": calls}.get(kind)
        if given is None:
            chosen += distinct(getattr(asking, kind), size, kind)
        elif len(given[split]) < size:
            raise ValueError(f"{split}: {size} {kind} questions are wanted, {len(given[split])} are there")
        else:
            chosen += asking.rng.sample(given[split], size)
    return chosen


def question_rows_schema() -> Any:
    """Arrow schema of these rows."""
    import pyarrow as pa

    text, strings = pa.string(), pa.list_(pa.string())
    return rows_schema({"kind": text, "target": strings, "functions": strings}, {})


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that this script shares with joyagents_sft.py."""
    parser.add_argument("--output_dir", type=Path, required=True, help="folder of everything that is written")
    parser.add_argument("--gsm8k", type=Path, help="folder with GSM8K's train and test files instead of the hub")
    parser.add_argument("--toolbench", type=Path, help="file or folder instead of ToolBench's own place")
    parser.add_argument("--seed", type=int, default=0, help="of what is generated and of what is chosen")


def write(arguments: argparse.Namespace) -> dict[str, int]:
    """Write all files; returns rows per file.

    Raises:
        ValueError: something cannot be read, or there is too little of it.
    """
    seed, output = arguments.seed, arguments.output_dir
    math = {split: gsm8k(arguments.gsm8k, split) for split in SPLITS}
    calls, prepared = functions(arguments.toolbench, SIZES["test"]["function"], seed)
    written = {}
    for split in SPLITS:
        rows = [
            question_row(asked.kind, asked.text, asked.truth, "customer service", split, i)
            for i, asked in enumerate(questions(seed, math, calls, split))
        ]
        write_parquet(rows, output / f"{split}.parquet", question_rows_schema())
        written[f"{split}.parquet"] = len(rows)
    entries = [{"pid": str(i), "title": title, "text": text} for i, (title, text) in enumerate(knowledge(seed).items())]
    for name, content in {"knowledge.jsonl": entries, "tools.jsonl": prepared.files["tools.jsonl"]}.items():
        write_jsonl(content, output / name)
        written[name] = len(content)
    return written


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    arguments = parser.parse_args(argv)
    return exit_status(lambda: say_written(arguments.output_dir, write(arguments)))


if __name__ == "__main__":
    sys.exit(main())
