"""Prepare a reasoning or writing task of the Puppeteer paper: train.parquet and test.parquet.

    python data_prep/reasoning.py gsm8k
    python data_prep/reasoning.py gsm_hard --output_dir data/gsm_hard --local_dataset_path gsm_hard.jsonl

    set             hub                            licence      one row, shortened
    gsm8k           openai/gsm8k (main)            MIT          {"question": "Natalia sold …", "answer": "… #### 72"}
    gsm_hard        reasoning-machines/gsm-hard    MIT          {"input": "Janet’s ducks …", "target": -9867630.0}
    mmlu_pro        TIGER-Lab/MMLU-Pro             MIT          {"question", "options": […], "answer": "F"}
    commongen_hard  file only (Self-Refine's       Apache-2.0   {"concepts": ["vest", "snow", …]}
                    commongen_hard.jsonl)

Their quirks: GSM-Hard's targets are floats, some of them absurd (its numbers were replaced at random); MMLU-Pro has up
to ten options, and some are the filler "N/A"; a row of CommonGen-Hard has no reference text, only its concepts.

Sets without a split of their own (all but gsm8k) are split here: a fifth are test questions, chosen by a checksum of
the question, so that the split does not depend on the order of the file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from verl_ext.arguments import Parser, described, exit_status
from verl_ext.data_prep.rows import (
    Row,
    data_files,
    list_field,
    named,
    print_written,
    read_hub,
    read_rows,
    split_of,
    text_field,
)
from verl_ext.storage.parquet import held_out, question_row, rows_schema, split_files, write_files

SPLITS = ("train", "test")
LETTERS = "ABCDEFGHIJ"


class Question(NamedTuple):
    """A question and its target: a number, a letter, or the concepts to be covered."""

    text: str
    target: list[str]


def gsm8k(row: dict[str, Any], where: str) -> Question:
    """The number after the last `####`."""
    answer = text_field(row, "answer", where)
    if "####" not in answer:
        raise ValueError(f"{where}: field 'answer' has no '####' before its number: {answer[-60:]!r}")
    number = answer.rpartition("####")[2].strip().replace(",", "")
    if not re.fullmatch(r"[-+]?\$?\d*\.?\d+", number):
        raise ValueError(f"{where}: field 'answer' has no number after its '####': {answer[-60:]!r}")
    return Question(text_field(row, "question", where), [number])


def gsm_hard(row: dict[str, Any], where: str) -> Question:
    """A float, written without an exponent and without a point that it does not need."""
    target = row.get("target")
    if not isinstance(target, int | float) or isinstance(target, bool) or target != target:
        raise ValueError(f"{where}: field 'target': given {target!r:.60}, expected a number.")
    shown = str(int(target)) if float(target).is_integer() else f"{target:.10f}".rstrip("0")
    return Question(text_field(row, "input", where), [shown])


def mmlu_pro(row: dict[str, Any], where: str) -> Question:
    """The question with its options; the letter of the right one."""
    options = [str(option) for option in list_field(row, "options", where)]
    letter = text_field(row, "answer", where)
    if letter not in list(LETTERS[: len(options)]):
        raise ValueError(f"{where}: field 'answer' is {letter!r}, but there are {len(options)} options.")
    listed = "\n".join(f"({LETTERS[i]}) {option}" for i, option in enumerate(options) if option != "N/A")
    text = f"{text_field(row, 'question', where)}\n{listed}\nAnswer with the letter of the right option."
    return Question(text, [letter])


def commongen_hard(row: dict[str, Any], where: str) -> Question:
    """The concepts that a paragraph must contain."""
    concepts = [str(concept) for concept in list_field(row, "concepts", where)]
    if not concepts:
        raise ValueError(f"{where}: field 'concepts' is empty.")
    return Question(f"Write a coherent paragraph that uses all of these concepts: {', '.join(concepts)}.", concepts)


class DataSet(NamedTuple):
    """What a set is, how its rows are read, and where they come from."""

    about: str
    read: Callable[[dict[str, Any], str], Question]
    ability: str
    hub: tuple[str, str | None] | None
    hub_splits: tuple[str, ...]


SETS = {
    "gsm8k": DataSet("GSM8K: grade-school mathematics", gsm8k, "math", ("openai/gsm8k", "main"), SPLITS),
    "gsm_hard": DataSet(
        "GSM-Hard: GSM8K with large numbers", gsm_hard, "math", ("reasoning-machines/gsm-hard", None), ("train",)
    ),
    "mmlu_pro": DataSet(
        "MMLU-Pro: questions with up to ten options", mmlu_pro, "knowledge", ("TIGER-Lab/MMLU-Pro", None), ("test",)
    ),
    "commongen_hard": DataSet("CommonGen-Hard: a paragraph with given concepts", commongen_hard, "writing", None, ()),
}


def rows_of(name: str, path: Path | None) -> Iterator[tuple[str | None, Row]]:
    """(split or None if the source has none, row) of the local file or folder, or of the hub.

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
    for file in files_of(name, path):
        own = split_of(file.stem) if len(data.hub_splits) > 1 else None
        yield from (("test" if own == "validation" else own, row) for row in read_rows(file))


def files_of(name: str, path: Path) -> list[Path]:
    """The file, or those of the folder that belong to the set: by their names, or by the names of their splits.

    Raises:
        ValueError: there are none, or it cannot be told whose they are.
    """
    files = data_files(path) if path.is_dir() else [path] if path.is_file() else []
    if not files:
        raise ValueError(f"--local_dataset_path {path} does not exist, or holds no .jsonl, .json or .parquet file.")
    own = [file for file in files if _named_after(file, name)]
    if own or files == [path]:
        return own or files
    own = [file for file in files if not any(_named_after(file, other) for other in SETS)]
    if not own or (len(own) > 1 and not all(split_of(file.stem) or split_of(file.parent.name) for file in own)):
        found = named([file.relative_to(path).as_posix() for file in files])
        raise ValueError(
            f"{path}: which files are {name} cannot be told by their names ({found}). Remedy: give one file."
        )
    return own


def _named_after(file: Path, name: str) -> bool:
    """Whether a file has the name of a set, in any spelling (gsmhardv2.jsonl)."""
    return re.sub(r"[^a-z0-9]", "", file.stem.lower()).startswith(name.replace("_", ""))


def prepare(name: str, output_dir: Path, path: Path | None = None, limit: int | None = None) -> dict[str, int]:
    """Write the set; returns rows per file. Repeated questions are left out, and their number is printed.

    Of a question with several targets the first one counts; the rows of the others are named.

    Raises:
        ValueError: a malformed row, or nothing to write.
    """
    data, rows = SETS[name], list(rows_of(name, path))
    found: dict[str, tuple[Question, str]] = {}
    conflicts: list[str] = []
    for split, (where, row) in rows:
        question = data.read(row, where)
        if question.text in found and found[question.text][0].target != question.target:
            conflicts.append(where)
        found.setdefault(question.text, (question, split or SPLITS[held_out(question.text)]))
    if len(found) < len(rows):
        print(f"left out: {len(rows) - len(found)} repeated questions")
    if conflicts:
        print(f"of them {len(conflicts)} with another target than the first one, which counts: {named(conflicts)}")
    if not found:
        raise ValueError(f"{name}: no row was found in {path or data.hub}.")

    def verl_row(numbered: tuple[int, Question], split: str, _: int) -> dict[str, Any]:
        """The index is the question's number in the whole set, so that it is unique."""
        number, question = numbered
        return question_row(name, question.text, {"target": question.target}, data.ability, split, number)

    chosen = {
        split: [(i, question) for i, (question, own) in enumerate(found.values()) if own == split][:limit]
        for split in SPLITS
    }
    return write_files(split_files(verl_row, **chosen), output_dir, rows_schema({"target": [str]}))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback."""
    parser = Parser(description=__doc__)
    names = parser.add_subparsers(dest="name", metavar="NAME", required=True)
    for name, data in SETS.items():
        place = "" if data.hub else f" --local_dataset_path {name}.jsonl"
        example = f"    python data_prep/reasoning.py {name}{place} --limit 100\n"
        one = names.add_parser(name, **described(f"{data.about}\n\n{example}"))
        one.add_argument("--output_dir", type=Path, default=Path("data") / name, help=f"data/{name} by default")
        one.add_argument("--local_dataset_path", type=Path, help="a downloaded file or folder instead of the hub")
        one.add_argument("--limit", type=int, help="questions of each split, at most")
    given = parser.parse_args(argv)
    folder = given.output_dir
    return exit_status(
        lambda: print_written(folder, prepare(given.name, folder, given.local_dataset_path, given.limit))
    )


if __name__ == "__main__":
    sys.exit(main())
