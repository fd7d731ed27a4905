"""Prepare a question-answering set: train.parquet, test.parquet and corpus.jsonl (the paragraphs of its questions).

    python data_prep/qa.py hotpotqa --output_dir data/hotpotqa
    python data_prep/qa.py musique --output_dir data/musique --local_dataset_path musique_ans_v1.0_train.jsonl

Then data_prep/corpus.py builds the search index. `qa.py NAME --help` shows a set's layout, licence and a row.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from verl_ext.arguments import Parser, described, exit_status, positive
from verl_ext.data_prep.qa_rows import QARow, QASet, parse_unified
from verl_ext.data_prep.rows import Row, divided, find_files, named, print_left, print_written, read_hub, read_rows
from verl_ext.data_prep.sources import hotpotqa, musique, wiki2multihopqa
from verl_ext.storage.jsonl import write_rows
from verl_ext.storage.parquet import question_row, rows_schema, split_files, write_files

SOURCES = {module.SOURCE.name: module for module in (hotpotqa, wiki2multihopqa, musique)}
DEFAULT_VAL_SIZE = 500  # MHGPO validates on the first 500 test questions
SPLITS = ("auto", "train", "validation", "all")


@dataclass
class Report:
    """What happened to the rows that were read."""

    read: int = 0
    without_answer: int = 0
    duplicates: int = 0
    leaks: int = 0
    conflicts: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        other = f"; of them {len(self.conflicts)} with other answers than the first: {named(self.conflicts)}"
        return (
            f"read {self.read} rows; refused {self.without_answer} without a gold answer; dropped {self.duplicates} "
            f"repeated questions and {self.leaks} training questions that are also in the validation split"
            + (other if self.conflicts else "")
        )


def collect(spec: QASet, rows: Iterable[tuple[Row, str | None]]) -> tuple[list[QARow], Report]:
    """Parse rows given with their file's split, and drop repeated questions (validation wins over train)."""
    report, parsed, places = Report(), [], []
    seen_ids: dict[str, tuple[str, str]] = {}
    for (where, row), split in rows:
        report.read += 1
        parse = parse_unified if "answers" in row and "answer" not in row else spec.parse
        item = parse(row, where)
        if item is None:
            report.without_answer += 1
            continue
        question, place = seen_ids.setdefault(item.id, (item.question, where))
        if question != item.question:
            raise ValueError(f"{where}: id {item.id!r} is taken by another question at {place}; ids must be unique.")
        split = split or item.split
        places.append(where)
        parsed.append(replace(item, split="validation" if split == "test" else split))  # a test row with an answer
    validation = {_key(item) for item in parsed if item.split == "validation"}
    kept: dict[str, QARow] = {}
    for item, where in zip(parsed, places, strict=True):
        if item.split != "validation" and _key(item) in validation:
            report.leaks += 1
        elif _key(item) in kept:
            report.duplicates += 1
            if set(item.answers) != set(kept[_key(item)].answers):
                report.conflicts.append(where)
        else:
            kept[_key(item)] = item
    if not kept:
        raise ValueError(f"{spec.name}: {report}; nothing is left. Check the file or folder that was given.")
    return list(kept.values()), report


def divide(rows: Sequence[QARow], which: str, val_size: int | None, seed: int) -> tuple[list[QARow], list[QARow], str]:
    """(training rows, validation rows, how they were chosen).

    which "auto": the source's own two splits if it has both: all training rows, the first `val_size` validation rows.
    Otherwise (one split, "train", "validation" or "all" pooled) `val_size` rows are held out, chosen by a hash of seed
    and id, hence independent of the order; by default 500, at most a fifth. Raises ValueError if none would be left.
    """
    if val_size is not None and val_size < 0:
        raise ValueError(f"--val_size must be >= 0 (0: no test.parquet), given {val_size}.")
    train = [row for row in rows if row.split != "validation"]
    validation = [row for row in rows if row.split == "validation"]
    if which == "auto" and train and validation:
        chosen = validation[: DEFAULT_VAL_SIZE if val_size is None else val_size]
        return train, chosen, f"the source's own splits; the first {len(chosen)} of {len(validation)} validation rows"
    pool = {"auto": list(rows), "all": list(rows), "train": train, "validation": validation}[which]
    held = min(DEFAULT_VAL_SIZE, len(pool) // 5) if val_size is None else val_size
    if held >= len(pool):
        raise ValueError(
            f"--val_size {held} leaves no training rows: the source has {len(pool)} rows for --split {which}. "
            "Give a smaller --val_size or another --split."
        )
    how = f"{held} of {len(pool)} rows held out of one pool (--split {which}, --seed {seed})"
    return *divided(pool, held, seed), how


def of_levels(rows: list[QARow], levels: Sequence[str]) -> list[QARow]:
    """The rows of these levels; all without levels. Raises ValueError for a level that no row has."""
    found = Counter(row.level for row in rows)
    unknown = [level for level in levels if level not in found]
    if unknown:
        raise ValueError(f"--levels {' '.join(unknown)}: no such level; the source has {dict(found)} (rows per level).")
    return [row for row in rows if row.level in levels] if levels else rows


def divide_by_level(rows: Sequence[QARow], size: int, which: str, seed: int) -> tuple[list[QARow], list[QARow], str]:
    """As `divide`, with `size` test rows of each level, chosen by a hash of seed and id.

    Raises:
        ValueError: a level has fewer rows, or there are no levels.
    """
    wanted = {"train": ["train"], "validation": ["validation"]}.get(which, ["train", "validation", None])
    pool = [row for row in rows if row.split in wanted]
    train, test = list[QARow](), list[QARow]()
    for level in sorted({row.level for row in pool}):
        own = [row for row in pool if row.level == level]
        if not level or len(own) < size:
            raise ValueError(f"--per_level {size}: there are {len(own)} rows of level {level!r}. Remedy: --levels")
        rest, held = divided(own, size, seed)
        train, test = train + rest, test + held
    return train, test, f"{size} test rows of each level out of {len(pool)} (--split {which}, --seed {seed})"


def prepare(spec: QASet, arguments: argparse.Namespace) -> dict[str, int]:
    """Read, divide and write one data set; prints a report. Returns rows per written file."""

    def verl_row(row: QARow, split: str, index: int) -> dict[str, Any]:
        truth = {"target": list(row.answers)}
        extra = {"gold_titles": list(row.gold_titles), "level": row.level, "type": row.type}
        source = f"{spec.name}_{row.level}" if arguments.per_level and split == "test" else spec.name
        return question_row(source, row.question, truth, "qa", split, index, row.id, **extra)

    if arguments.per_level and arguments.val_size is not None:
        raise ValueError("--val_size would do nothing with --per_level, which sets the test rows. Remedy: one of them")
    rows, report = collect(spec, _source(spec, arguments))
    print(f"{spec.name}: {report}")
    rows = of_levels(rows, arguments.levels)
    if arguments.per_level:
        train, test, how = divide_by_level(rows, arguments.per_level, arguments.split, arguments.seed)
    else:
        train, test, how = divide(rows, arguments.split, arguments.val_size, arguments.seed)
    train, output = train[: arguments.max_samples], arguments.output_dir
    schema = rows_schema({"target": [str]}, {"gold_titles": [str], "level": str, "type": str})
    written = dict[str, int]()
    paragraphs = [pair for row in (*train, *test) for pair in row.paragraphs if pair[0].strip() or pair[1].strip()]
    numbered = enumerate(dict.fromkeys(paragraphs))  # each once
    passages = [{"pid": f"{spec.name}-{i}", "title": title, "text": text} for i, (title, text) in numbered]
    if passages:
        written["corpus.jsonl"] = write_rows(output / "corpus.jsonl", passages)
    # The training questions last: for `make real` they say that all is there.
    written |= write_files(split_files(verl_row, test=test, train=train), output, schema)
    print(f"chosen: {how}")
    print_written(output, written)
    print_left(output, written, ("train.parquet", "test.parquet", "corpus.jsonl"))
    if not passages:
        print("these rows have no paragraphs: take the corpus from elsewhere (wiki-18.jsonl of FlashRAG, for instance)")
    corpus = output / "corpus.jsonl" if passages else "CORPUS.jsonl"
    print(f"next: python data_prep/corpus.py --input {corpus} --output_dir {output / 'index'}")
    return written


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback."""
    parser = Parser(description=__doc__)
    names = parser.add_subparsers(dest="name", metavar="NAME", required=True)
    for name, module in SOURCES.items():
        one = names.add_parser(name, **described(module.__doc__))
        one.add_argument("--output_dir", type=Path, required=True, help="folder of everything that is written")
        place = f"file or folder instead of the hub ({module.SOURCE.hub})"
        one.add_argument("--local_dataset_path", type=Path, help=place)
        one.add_argument("--split", choices=SPLITS, default="auto", help="rows to use; auto: the source's own splits")
        one.add_argument("--max_samples", type=positive, help="at most so many training rows (the first ones)")
        one.add_argument("--val_size", type=int, help="rows of test.parquet (default 500, or a fifth of a single pool)")
        one.add_argument(
            "--levels", nargs="+", default=[], help="only rows of these levels (HotpotQA: easy medium hard)"
        )
        per_level = "test rows of each level, with data_source NAME_LEVEL: reported apart; instead of --val_size"
        one.add_argument("--per_level", type=positive, help=per_level)
        one.add_argument("--seed", type=int, default=0, help="of the held-out rows")
    arguments = parser.parse_args(argv)
    return exit_status(lambda: prepare(SOURCES[arguments.name].SOURCE, arguments))


def _source(spec: QASet, arguments: argparse.Namespace) -> Iterator[tuple[Row, str | None]]:
    if arguments.local_dataset_path is not None:
        for file, split in find_files(arguments.local_dataset_path, spec.exclude):
            yield from ((row, split) for row in read_rows(file))
        return
    wanted = ("train", "validation") if arguments.split in ("auto", "all") else (arguments.split,)
    for split in wanted:
        yield from ((row, split) for row in read_hub(spec.hub, spec.hub_config, split))


def _key(row: QARow) -> str:
    return " ".join(row.question.casefold().split())


if __name__ == "__main__":
    sys.exit(main())
