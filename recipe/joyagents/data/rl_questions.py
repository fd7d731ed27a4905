"""Write the questions of JoyAgents-R1's reinforcement learning, and the files that its tools read.

    python -m verl_ext.recipe.joyagents.data.rl_questions --output_dir data/joyagents
    python -m verl_ext.recipe.joyagents.data.rl_questions --output_dir data/joyagents --gsm8k FOLDER --toolbench FOLDER
    python -m verl_ext.recipe.joyagents.data.rl_questions --output_dir data/joyagents_2 \\
        --specialists question_agent shop_agent
    python -m verl_ext.recipe.joyagents.data.rl_questions --output_dir data/joyagents --coig COIG-CQIA

Kinds and sizes are the paper's (Section 4.2): 100 training questions each for math, knowledge base, the shop's APIs and
other functions, 200 that need several specialists; 100 test questions of each kind. GSM8K
(https://github.com/openai/grade-school-math, MIT) and ToolBench (data_prep/sources/toolbench.py) are real; the shop's
data are a company's own and not public, so these questions are generated (generated_questions.py).
With --coig, three of ten questions to the QA agent are of an open domain, as in the paper's fine-tuning data (700 of a
shop, 300 of COIG; it states no shares for RL). Their data_source is `qa`, too, and their kind `open`.

One row, shortened:
    {"data_source": "cooperation", "prompt": [{"role": "user", "content": "I want to open 4 flagship shops for …"}],
     "reward_model": {"ground_truth": {"kind": "math", "target": ["360000"], "functions": []}}}

Writes train.parquet, test.parquet, knowledge.jsonl (the knowledge base) and tools.jsonl (ToolBench's documents).
With fewer specialists (Table 7) there are only their questions and files, and, as in the paper, cooperations from three
specialists on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from verl_ext.arguments import Parser, exit_status
from verl_ext.data_prep import reasoning
from verl_ext.data_prep.rows import print_written, text_field
from verl_ext.data_prep.sources import toolbench
from verl_ext.data_prep.sources.questions import coig as read_coig
from verl_ext.data_prep.sources.questions import gsm8k as read_gsm8k
from verl_ext.data_prep.tool_tasks import Prepared, divide
from verl_ext.recipe.joyagents.data.generated_questions import (
    KINDS,
    REAL,
    SPLITS,
    Question,
    QuestionGenerator,
    knowledge,
)
from verl_ext.recipe.joyagents.react import RESULT_CHARS, safe
from verl_ext.storage.jsonl import write_rows
from verl_ext.storage.parquet import held_out, question_row, rows_schema, split_files, write_files
from verl_ext.worlds.data_set import draw_distinct

SIZES = {
    "train": {"math": 100, "qa": 100, "shop": 100, "function": 100, "cooperation": 200},
    "test": {"math": 100, "qa": 100, "shop": 100, "function": 100, "cooperation": 100},
}

OPEN_SHARE = 0.3  # of the questions to the QA agent: Section 4.2 has 300 of COIG among 1,000


def gsm8k(path: Path | None, split: str) -> list[Question]:
    """GSM8K's questions with their solutions; path: a folder with files of both splits, None: the hub.

    Raises:
        ValueError: there is no such file, or a row is not GSM8K's.
    """
    found = []
    with _option("--gsm8k"):
        for label, (where, row) in reasoning.rows_of("gsm8k", path):
            if label == split:
                read = read_gsm8k(row, where)
                thought = text_field(row, "answer", where).rpartition("####")[0].strip()
                found.append(Question("math", read.text, answer=read.target[0], thought=thought))
    if not found:
        raise ValueError(f"--gsm8k {path}: a folder with a file whose name contains {split!r} is expected")
    return found


def coig(path: Path) -> dict[str, list[Question]]:
    """COIG's questions by split; without those that an agent could not pass on whole, whose number is printed.

    Raises:
        ValueError: there is no such file, or a row is not COIG's.
    """
    found: dict[str, Question] = {}
    left_out = 0
    with _option("--coig"):
        for _, (where, row) in reasoning.rows_of("coig", path):
            read = read_coig(row, where)
            text, answer = read.text, read.target[0]
            if not (text and answer) or safe(text) != text or safe(answer, RESULT_CHARS) != answer:
                left_out += 1
            else:
                found.setdefault(read.text, Question("open", read.text, answer=read.target[0]))
    if left_out:
        print(f"--coig: {left_out} rows left out: no question or no answer, too long, or with tags")
    return {split: [one for one in found.values() if SPLITS[held_out(one.text)] == split] for split in SPLITS}


def functions(path: Path | None, test_size: int, seed: int) -> tuple[dict[str, list[Question]], Prepared]:
    """ToolBench's questions by split, and its documents; most take several APIs.

    Raises:
        ValueError: they cannot be read, or are too few.
    """
    with _option("--toolbench"):
        prepared = toolbench.prepare(argparse.Namespace(local_dataset_path=path, sets=[], corpus=None))
    if len(prepared.tasks) < 2 * test_size:
        raise ValueError(
            f"--toolbench: {len(prepared.tasks)} questions were found, at least {2 * test_size} are needed"
        )
    train, test = (
        [Question("function", task.question, functions=tuple(map(str, task.path))) for task in tasks]
        for tasks in divide(prepared.tasks, test_size, seed)
    )
    held = {question.text for question in test}  # some questions have several numbers
    return {"train": [question for question in train if question.text not in held], "test": test}, prepared


@contextmanager
def _option(name: str) -> Iterator[None]:
    """Name this script's option in the errors of another script, which calls it --local_dataset_path."""
    try:
        yield
    except ValueError as error:
        message = str(error).replace("--local_dataset_path", name)
        raise ValueError(message if name in message else f"{name}: {message}") from error


def sizes_for(sizes: Mapping[str, int], specialists: Sequence[str], with_open: bool = False) -> dict[str, int]:
    """Of `sizes` by kind those of the specialists; cooperations from three of them on. with_open: a share of `qa`."""
    kinds = {KINDS[name] for name in specialists} | ({"cooperation"} if len(specialists) > 2 else set())
    found = {kind: size for kind, size in sizes.items() if kind in kinds}
    if with_open and "qa" in found:
        found["open"] = round(OPEN_SHARE * found["qa"])
        found["qa"] -= found["open"]
    return found


def questions(
    seed: int, real: Mapping[str, list[Question]], split: str, specialists: Sequence[str] = tuple(KINDS)
) -> list[Question]:
    """The questions of a split, kind after kind; real: those of the split that are not generated, by kind.

    Raises:
        ValueError: there are not enough.
    """
    generator, chosen = QuestionGenerator(seed, split, real, specialists), []
    for kind, size in sizes_for(SIZES[split], specialists, "open" in real).items():
        if kind not in REAL:
            chosen += draw_distinct(partial(generator.draw, kind), size, f"{split} {kind} questions")
        elif len(real[kind]) < size:
            raise ValueError(f"{split}: {size} {kind} questions are wanted, {len(real[kind])} are there")
        else:
            chosen += generator.rng.sample(real[kind], size)
    return chosen


def run_script(
    description: str | None,
    write: Callable[[argparse.Namespace], dict[str, int]],
    argv: Sequence[str] | None,
    more: Mapping[str, dict[str, Any]] | None = None,
) -> int:
    """The command line of this script and of sft_conversations.py; `write` gives rows per file.

    Args:
        more: further options and their settings.

    Returns: the exit status; user errors are printed without a traceback.
    """
    parser = Parser(description=description)
    parser.add_argument("--output_dir", type=Path, required=True, help="folder of everything that is written")
    parser.add_argument("--gsm8k", type=Path, help="folder with GSM8K's train and test files instead of the hub")
    parser.add_argument("--toolbench", type=Path, help="file or folder instead of ToolBench's own place")
    parser.add_argument(
        "--coig", type=Path, help="file or folder of COIG: open questions to the QA agent; default: none"
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is generated and of what is chosen")
    parser.add_argument(
        "--specialists", nargs="+", choices=list(KINDS), default=list(KINDS), help="of the system (Table 7: 2, 3, 4)"
    )
    for option, settings in (more or {}).items():
        parser.add_argument(option, **settings)
    arguments = parser.parse_args(argv)
    return exit_status(lambda: print_written(arguments.output_dir, write(arguments)))


def write(arguments: argparse.Namespace) -> dict[str, int]:
    """Write all files; returns rows per file.

    Raises:
        ValueError: something cannot be read, or there is too little of it.
    """
    seed, output, specialists = arguments.seed, arguments.output_dir, arguments.specialists
    real, prepared = real_questions(arguments)

    def verl_row(question: Question, split: str, index: int) -> dict[str, Any]:
        source = "qa" if question.kind == "open" else question.kind
        return question_row(source, question.text, question.truth, "customer service", split, index)

    rows = split_files(verl_row, **{split: questions(seed, real[split], split, specialists) for split in SPLITS})
    written = write_files(rows, output, rows_schema({"kind": str, "target": [str], "functions": [str]}))
    entries = [{"pid": str(i), "title": title, "text": text} for i, (title, text) in enumerate(knowledge(seed).items())]
    files = {"tools.jsonl": prepared.files["tools.jsonl"]} if prepared else {}
    files |= {"knowledge.jsonl": entries}  # the last one: scripts take it for the sign that all is there
    return written | {name: write_rows(output / name, content) for name, content in files.items()}


def real_questions(arguments: argparse.Namespace) -> tuple[dict[str, dict[str, list[Question]]], Prepared | None]:
    """Split -> kind -> the questions that are not generated, of the specialists; and ToolBench's documents.

    Raises:
        ValueError: they cannot be read, or are too few.
    """
    real: dict[str, dict[str, list[Question]]] = {split: {} for split in SPLITS}
    prepared = None
    if "function_agent" in arguments.specialists:
        calls, prepared = functions(arguments.toolbench, SIZES["test"]["function"], arguments.seed)
        for split in SPLITS:
            real[split]["function"] = calls[split]
    if "question_agent" in arguments.specialists and arguments.coig:
        for split, open_questions in coig(arguments.coig).items():
            real[split]["open"] = open_questions
    if "math_agent" in arguments.specialists:
        for split in SPLITS:
            real[split]["math"] = gsm8k(arguments.gsm8k, split)
    return real, prepared


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status."""
    return run_script(__doc__, write, argv)


if __name__ == "__main__":
    sys.exit(main())
