"""Reasoning and writing tasks of the Puppeteer paper: GSM8K, GSM-Hard, MMLU-Pro, CommonGen-Hard.

    set             hub                            licence      one row, shortened
    gsm8k           openai/gsm8k (main)            MIT          {"question": "Natalia sold …", "answer": "… #### 72"}
    gsm_hard        reasoning-machines/gsm-hard    MIT          {"input": "Janet’s ducks …", "target": -9867630.0}
    mmlu_pro        TIGER-Lab/MMLU-Pro             MIT          {"question", "options": […], "answer": "F"}
    commongen_hard  file only (Self-Refine's       Apache-2.0   {"concepts": ["vest", "snow", …]}
                    commongen_hard.jsonl)

Their quirks: GSM-Hard's targets are floats, some of them absurd (its numbers were replaced at random); MMLU-Pro has up
to ten options, and fillers "N/A" among them; a row of CommonGen-Hard has no right text, only its concepts.

    python data_prep/reasoning.py gsm8k --output_dir data/gsm8k

Writes train.parquet and test.parquet in verl's schema. Sets that come in one piece (all but gsm8k) are cut: a fifth is
the test's, by a checksum of the question, so that the cut is the same whatever the file's order.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from verl_ext.data_prep.common import (
    Row,
    exit_status,
    list_field,
    question_row,
    read_hub,
    read_rows,
    rows_schema,
    say_written,
    split_of,
    text_field,
    write_parquet,
)

SPLITS = ("train", "test")
LETTERS = "ABCDEFGHIJ"


class Asked(NamedTuple):
    """A question and what is right: numbers, a letter, or the concepts to be covered."""

    question: str
    target: list[str]


def gsm8k(row: dict[str, Any], where: str) -> Asked:
    """The number behind the last `####`."""
    answer = text_field(row, "answer", where)
    if "####" not in answer:
        raise ValueError(f"{where}: field 'answer' has no '####' before its number: {answer[-60:]!r}")
    return Asked(text_field(row, "question", where), [answer.rpartition("####")[2].strip().replace(",", "")])


def gsm_hard(row: dict[str, Any], where: str) -> Asked:
    """A float, written without an exponent and without a point that it does not need."""
    target = row.get("target")
    if not isinstance(target, int | float) or isinstance(target, bool) or target != target:
        raise ValueError(f"{where}: field 'target': given {target!r:.60}, expected a number.")
    shown = str(int(target)) if float(target).is_integer() else f"{target:.10f}".rstrip("0")
    return Asked(text_field(row, "input", where), [shown])


def mmlu_pro(row: dict[str, Any], where: str) -> Asked:
    """The question with its options; the letter of the right one."""
    options = [str(option) for option in list_field(row, "options", where)]
    letter = text_field(row, "answer", where)
    if letter not in list(LETTERS[: len(options)]):
        raise ValueError(f"{where}: field 'answer' is {letter!r}, but there are {len(options)} options.")
    listed = "\n".join(f"({LETTERS[i]}) {option}" for i, option in enumerate(options) if option != "N/A")
    asked = f"{text_field(row, 'question', where)}\n{listed}\nAnswer with the letter of the right option."
    return Asked(asked, [letter])


def commongen_hard(row: dict[str, Any], where: str) -> Asked:
    """The concepts that one paragraph is to hold."""
    concepts = [str(concept) for concept in list_field(row, "concepts", where)]
    if not concepts:
        raise ValueError(f"{where}: field 'concepts' is empty.")
    return Asked(f"Write a coherent paragraph that uses all of these concepts: {', '.join(concepts)}.", concepts)


class DataSet(NamedTuple):
    """Where a set lies, and how its rows are read."""

    read: Callable[[dict[str, Any], str], Asked]
    ability: str
    hub: tuple[str, str | None] | None
    hub_splits: tuple[str, ...]


SETS = {
    "gsm8k": DataSet(gsm8k, "math", ("openai/gsm8k", "main"), SPLITS),
    "gsm_hard": DataSet(gsm_hard, "math", ("reasoning-machines/gsm-hard", None), ("train",)),
    "mmlu_pro": DataSet(mmlu_pro, "knowledge", ("TIGER-Lab/MMLU-Pro", None), ("test",)),
    "commongen_hard": DataSet(commongen_hard, "writing", None, ()),
}


def rows_of(name: str, path: Path | None) -> Iterator[tuple[str | None, Row]]:
    """(split as far as the source tells one, row) of the local file or folder, or of the hub.

    Raises:
        ValueError: there is nothing to read.
    """
    data = SETS[name]
    if path is None:
        if data.hub is None:
            raise ValueError(f"{name} is not on the hub. Remedy: --local_dataset_path {name}.jsonl")
        for split in data.hub_splits:
            yield from ((split if len(data.hub_splits) > 1 else None, row) for row in read_hub(*data.hub, split))
        return
    files = sorted(path.glob("*.json*")) + sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    files = [file for file in files if file.is_file()]
    files = [file for file in files if file.stem.lower().replace("-", "_").startswith(name)] or files
    if not files:
        raise ValueError(f"--local_dataset_path {path} does not exist, or holds no .jsonl, .json or .parquet file.")
    for file in files:
        told = split_of(file.stem) if len(data.hub_splits) > 1 else None
        yield from (({"validation": "test"}.get(told, told) if told else None, row) for row in read_rows(file))


def split_for(question: str) -> str:
    """A fifth of the questions is the test's."""
    return "test" if zlib.crc32(question.encode()) % 5 == 0 else "train"


def prepare(name: str, output_dir: Path, path: Path | None = None, limit: int | None = None) -> dict[str, int]:
    """Write the set; returns rows per file. A question that comes again is left out, and counted in a line.

    Raises:
        ValueError: a row that is not as it should be, or nothing to write.
    """
    data, found, repeated = SETS[name], {split: [] for split in SPLITS}, Counter[str]()
    seen: set[str] = set()
    for told, (where, row) in rows_of(name, path):
        asked = data.read(row, where)
        if asked.question in seen:
            repeated[told or "all"] += 1
            continue
        seen.add(asked.question)
        split = told or split_for(asked.question)
        if limit is None or len(found[split]) < limit:
            number = len(seen) - 1
            found[split].append(
                question_row(name, asked.question, {"target": asked.target}, data.ability, split, number)
            )
    if repeated:
        print(f"left out, as they come again: {repeated.total()} questions")
    if not any(found.values()):
        raise ValueError(f"{name}: no row was found in {path or data.hub}.")
    written = {}
    for split, rows in found.items():
        if rows:
            write_parquet(rows, output_dir / f"{split}.parquet", schema=_schema())
            written[f"{split}.parquet"] = len(rows)
    return written


def _schema() -> Any:
    import pyarrow as pa

    return rows_schema({"target": pa.list_(pa.string())}, {})


def main() -> int:
    """Command line: write one set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(SETS), help="which set")
    parser.add_argument("--output_dir", type=Path, help="data/NAME by default")
    parser.add_argument("--local_dataset_path", type=Path, help="a downloaded file or folder, in place of the hub")
    parser.add_argument("--limit", type=int, help="questions of each split, at most")
    args = parser.parse_args()
    folder = args.output_dir or Path("data") / args.name

    def work() -> None:
        say_written(folder, prepare(args.name, folder, args.local_dataset_path, args.limit))

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
