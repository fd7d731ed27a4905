"""Prepare a set of questions with an answer, or a writing task: train.parquet and test.parquet.

    python data_prep/reasoning.py gsm8k
    python data_prep/reasoning.py gsm_hard --output_dir data/gsm_hard --local_dataset_path gsm_hard.jsonl
    python data_prep/reasoning.py gaia --local_dataset_path GAIA/2023/validation

    set             hub                            licence       one row, shortened
    gsm8k           openai/gsm8k (main)            MIT           {"question": "Natalia sold …", "answer": "… #### 72"}
    gsm_hard        reasoning-machines/gsm-hard    MIT           {"input": "Janet’s ducks …", "target": -9867630.0}
    mmlu_pro        TIGER-Lab/MMLU-Pro             MIT           {"question", "options": […], "answer": "F"}
    commongen_hard  file only (Self-Refine's       Apache-2.0    {"concepts": ["vest", "snow", …]}
                    commongen_hard.jsonl)
    srdd            file only (ChatDev's SRDD/     CC BY-NC 4.0  Name,Description,Category
                    data_attribute_format.csv)
    gaia            gaia-benchmark/GAIA (gated)    not free      {"task_id", "Question", "Level": 2, "Final answer",
                                                                  "file_name": "32102e3e.xlsx"} of metadata.jsonl
    hle             cais/hle (gated)               MIT           {"question", "answer", "answer_type": "exactMatch"}
    deepmath        zwhe99/DeepMath-103K           MIT           {"question", "final_answer", "difficulty", "topic"}
    webshaper       file only (WebShaper's,        not free      {"question": "Which club …", "answer": "…"}
    webdancer       WebDancer's sample_qa.jsonl)
    coig            file only (BAAI/COIG,          Apache-2.0    {"instruction", "input", "output"}, or an exam's
                    m-a-p/COIG-CQIA)                             {"textbox_question", "textbox_answer", …}

A row's ground_truth has the gold as `target`, and as `kind` how answers are compared (sources/questions.py). Level,
category and attached file are in extra_info.

Their quirks: GSM-Hard's targets are floats, some of them absurd (its numbers were replaced at random); MMLU-Pro has up
to ten options, and some are the filler "N/A"; a row of CommonGen-Hard has no reference text, only its concepts, and one
of SRDD no program. GAIA's test answers are not public, and its files stay where they are: give read_file their folder.
Questions of HLE with an image are left out.

GAIA's questions are reported by kind, as gaia_text and gaia_file; a copy that names the kind (DeepAgent's
data/GAIA/all.json: text, mm, file) is read by it.

Sets without a split of their own are split here: a fifth are test questions, chosen by a checksum of the question, so
that the split does not depend on the order of the file. GAIA and HLE are benchmarks: all are test questions.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from verl_ext.arguments import Parser, described, exit_status, positive
from verl_ext.data_prep.rows import (
    SUFFIXES,
    Row,
    data_files,
    named,
    print_left,
    print_written,
    read_hub,
    read_rows,
    split_of,
)
from verl_ext.data_prep.sources.questions import SETS, Question
from verl_ext.storage.parquet import held_out, question_row, rows_schema, split_files, write_files

SPLITS = ("train", "test")


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
        inner = file.parent.name if path in file.parents[1:] else ""
        own = split_of(file.stem) or split_of(inner) if len(data.hub_splits) > 1 else None
        yield from (("test" if own == "validation" else own, row) for row in read_rows(file))


def files_of(name: str, path: Path) -> list[Path]:
    """The file, or those of the folder that belong to the set: by their names, or by the names of their splits.

    Raises:
        ValueError: there are none, or it cannot be told whose they are.
    """
    files = data_files(path) if path.is_dir() else [path] if path.is_file() else []
    if not files:
        raise ValueError(f"--local_dataset_path {path} does not exist, or holds no file of {', '.join(SUFFIXES)}.")
    usual = SETS[name].file
    own = [file for file in files if _named_after(file, name) or (usual and file.match(usual))]
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
    data, repeated = SETS[name], 0
    found: dict[str, tuple[Question, str]] = {}
    rejected: dict[str, list[str]] = defaultdict(list)
    conflicts: list[str] = []
    for split, (where, row) in rows_of(name, path):
        question = data.read(row, where)
        if isinstance(question, Question) and not (question.text and all(question.target)):
            question = "no question or no answer"
        if isinstance(question, str):
            rejected[question].append(where)
            continue
        if question.text in found:
            repeated += 1
            conflicts += [where] if found[question.text][0].target != question.target else []
        own = "test" if data.test_only else split or SPLITS[held_out(question.text)]
        found.setdefault(question.text, (question, own))
    for reason, places in rejected.items():
        print(f"left out, {reason}: {len(places)} ({named(places)})")
    if repeated:
        print(f"left out: {repeated} repeated questions")
    if conflicts:
        print(f"of them {len(conflicts)} with another target than the first one, which counts: {named(conflicts)}")
    if not found:
        raise ValueError(f"{name}: no row was found in {path or data.hub}.")

    def verl_row(numbered: tuple[int, Question], split: str, _: int) -> dict[str, Any]:
        """The index is the question's number in the whole set, so that it is unique."""
        number, question = numbered
        truth = {"kind": question.kind, "target": question.target}
        extra = {"level": question.level, "category": question.category, "file": question.file}
        source = f"{name}_{question.part}" if question.part else name
        return question_row(source, question.text, truth, data.ability, split, number, **extra)

    chosen = {
        split: [(i, question) for i, (question, own) in enumerate(found.values()) if own == split][:limit]
        for split in SPLITS
    }
    schema = rows_schema({"kind": str, "target": [str]}, dict.fromkeys(("level", "category", "file"), str))
    return write_files(split_files(verl_row, **chosen), output_dir, schema)


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
        one.add_argument("--limit", type=positive, help="questions of each split, at most")
    given = parser.parse_args(argv)

    def work() -> None:
        written = prepare(given.name, given.output_dir, given.local_dataset_path, given.limit)
        print_written(given.output_dir, written)
        print_left(given.output_dir, written)

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
