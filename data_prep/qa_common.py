"""From the rows of a question-answering set to train.parquet, test.parquet and corpus.jsonl.

Shared by hotpotqa.py, wiki2multihopqa.py and musique.py, each of which is a `QASet`: where the data come from and how
one row of its own layout is read. The layout of qa_layouts.parse_unified is understood for all of them.
"""

import argparse
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from verl_ext.data_prep.common import Row, exit_status, find_files, read_hub, read_rows, write_jsonl, write_parquet
from verl_ext.data_prep.qa_layouts import QARow, parse_unified

DEFAULT_VAL_SIZE = 500  # MHGPO validates on the first 500 test questions
SPLITS = ("auto", "train", "validation", "all")


@dataclass(frozen=True)
class QASet:
    """A data set. parse: (row, where) -> QARow, or None for a row without a gold answer; exclude: see find_files."""

    name: str
    hub: str
    hub_config: str | None
    parse: Callable[[dict[str, Any], str], QARow | None]
    exclude: str = r"(?!)"


@dataclass
class Report:
    """What happened to the rows that were read."""

    read: int = 0
    without_answer: int = 0
    duplicates: int = 0
    leaks: int = 0

    def __str__(self) -> str:
        return (
            f"read {self.read} rows; refused {self.without_answer} without a gold answer; dropped {self.duplicates} "
            f"repeated questions and {self.leaks} training questions that are also in the validation split"
        )


def collect(spec: QASet, rows: Iterator[tuple[Row, str | None]]) -> tuple[list[QARow], Report]:
    """Parse rows given with their file's split, and drop repeated questions (validation wins over train)."""
    report, parsed = Report(), []
    seen_ids: dict[str, tuple[str, str]] = {}
    for (where, row), split in rows:
        report.read += 1
        parse = parse_unified if "answers" in row and "answer" not in row else spec.parse
        item = parse(row, where)
        if item is None:
            report.without_answer += 1
            continue
        earlier = seen_ids.setdefault(item.id, (item.question, where))
        if earlier[0] != item.question:
            raise ValueError(
                f"{where}: id {item.id!r} is taken by another question at {earlier[1]}; ids must be unique."
            )
        split = split or item.split
        parsed.append(replace(item, split="validation" if split == "test" else split))  # a test row with an answer
    validation = {_key(item) for item in parsed if item.split == "validation"}
    kept: dict[str, QARow] = {}
    for item in parsed:
        if item.split != "validation" and _key(item) in validation:
            report.leaks += 1
        elif _key(item) in kept:
            report.duplicates += 1
        else:
            kept[_key(item)] = item
    if not kept:
        raise ValueError(f"{spec.name}: {report}; nothing is left. Check the file or folder that was given.")
    return list(kept.values()), report


def divide(rows: Sequence[QARow], which: str, val_size: int | None, seed: int) -> tuple[list[QARow], list[QARow], str]:
    """(training rows, validation rows, how they were chosen).

    which "auto": the source's own two splits if it has both: all training rows, the first `val_size` validation rows.
    Otherwise (one split, "train", "validation" or "all" pooled) `val_size` rows are held out, chosen by a hash of seed
    and id, hence independent of the order; by default 500, at most a fifth. Raises ValueError when none would be left.
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
    order = sorted(pool, key=lambda row: hashlib.sha256(f"{seed}:{row.id}".encode()).hexdigest())
    out = {row.id for row in order[:held]}
    how = f"{held} of {len(pool)} rows held out of one pool (--split {which}, --seed {seed})"
    return [row for row in pool if row.id not in out], [row for row in pool if row.id in out], how


def verl_row(row: QARow, data_source: str, split: str, index: int) -> dict[str, Any]:
    """One row of verl's parquet. index: position in its file."""
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": row.question}],
        "ability": "qa",
        "reward_model": {"style": "rule", "ground_truth": {"target": list(row.answers)}},
        "extra_info": {
            "index": index,
            "split": split,
            "id": row.id,
            "question": row.question,
            "gold_titles": list(row.gold_titles),
        },
    }


def passages_of(rows: Sequence[QARow], name: str) -> list[dict[str, str]]:
    """Corpus rows of the paragraphs of `rows`, each (title, text) once; pid "<name>-<number>"."""
    pairs = dict.fromkeys(pair for row in rows for pair in row.paragraphs if pair[0].strip() or pair[1].strip())
    return [{"pid": f"{name}-{i}", "title": title, "text": text} for i, (title, text) in enumerate(pairs)]


def prepare(spec: QASet, arguments: argparse.Namespace) -> Counter[str]:
    """Read, divide and write one data set as its command line says; prints a report. Returns rows per written file."""
    rows, report = collect(spec, _source(spec, arguments))
    print(f"{spec.name}: {report}")
    train, validation, how = divide(rows, arguments.split, arguments.val_size, arguments.seed)
    train = train[: arguments.max_samples]
    output, written = Path(arguments.output_dir), Counter()
    for file, split, part in (("train.parquet", "train", train), ("test.parquet", "test", validation)):
        if part:
            write_parquet([verl_row(row, spec.name, split, i) for i, row in enumerate(part)], output / file)
            written[file] = len(part)
    passages = passages_of([*train, *validation], spec.name)
    if passages:
        write_jsonl(passages, output / "corpus.jsonl")
        written["corpus.jsonl"] = len(passages)
    print(f"chosen: {how}")
    for file, count in written.items():
        print(f"wrote {output / file}: {count} rows")
    for file in ("train.parquet", "test.parquet", "corpus.jsonl"):
        if file not in written and (output / file).exists():
            print(f"not written, left from an earlier run: {output / file}")
    corpus = output / "corpus.jsonl" if passages else "CORPUS.jsonl"
    if not passages:
        print(
            "these rows carry no paragraphs: take the corpus from elsewhere (wiki-18.jsonl of FlashRAG, for instance)"
        )
    print(f"next: python data_prep/corpus.py --input {corpus} --output_dir {output / 'index'}")
    return written


def main(spec: QASet, description: str, argv: Sequence[str] | None = None) -> int:
    """Command line of a data set's script. Returns the exit status; user errors are printed without a traceback."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", required=True, help="folder for train.parquet, test.parquet, corpus.jsonl")
    parser.add_argument("--local_dataset_path", type=Path, help=f"file or folder instead of the hub ({spec.hub})")
    parser.add_argument("--split", choices=SPLITS, default="auto", help="rows to use; auto: the source's own splits")
    parser.add_argument("--max_samples", type=_positive, help="at most so many training rows (the first ones)")
    parser.add_argument("--val_size", type=int, help="rows of test.parquet (default 500, or a fifth of a single pool)")
    parser.add_argument("--seed", type=int, default=0, help="of the held-out rows")
    arguments = parser.parse_args(argv)
    return exit_status(lambda: prepare(spec, arguments))


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


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be >= 1, given {text}")
    return value
