"""Measure retrieval by itself: how many gold titles it finds, how fast, and what its index costs.

    python -m verl_ext.tools.retrieval.measure --corpus corpus.jsonl --questions test.parquet
    python -m verl_ext.tools.retrieval.measure --index data/hotpotqa/index --questions test.parquet

With --corpus, the indexes are built once and kept under --output_dir (bm25, and for each --model the kinds of
--dense_index, ivf searched with each number of --ivf_probes). Each row of the table is saved when it is measured: after
an interruption the same command continues, and a second call only prints. docs/retrieval.md defines the columns.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_ext.arguments import Parser, exit_status, positive
from verl_ext.reports import machine
from verl_ext.storage.files import file_sha256, write_file
from verl_ext.tools import measuring
from verl_ext.tools.measuring import row_names, search_all
from verl_ext.tools.retrieval.corpus import OFFSETS, PASSAGES, PassageStore
from verl_ext.tools.retrieval.dense import INDEX_KINDS
from verl_ext.tools.retrieval.index import BACKENDS, load_index
from verl_ext.tools.retrieval.recall import Question, read_questions, recall, same_title
from verl_ext.tools.retrieval.targets import Target, digest, prepare
from verl_ext.tools.retrieval.types import Retriever

KS = (5, 10)
RECORD = 1  # format of a saved row
COLUMNS = ("questions", "backend", "index", *(f"{name}@{k}" for name in ("recall", "all") for k in KS), "same@10")
COLUMNS += ("queries/s", "build s", "index MiB")


@dataclass(frozen=True)
class QuestionSet:
    """A questions file. without: number of its questions without gold titles. content: identifies file and limit."""

    name: str
    questions: list[Question]
    without: int
    content: tuple[str, int | None]


class Indexes:
    """Opens the indexes, one at a time, and verifies the files of each once.

    device: for the encoders. gold: the gold titles of all questions.
    """

    def __init__(self, device: str | None, gold: frozenset[str]) -> None:
        self._device, self._gold = device, gold
        self._open: tuple[Path, Any] | None = None
        self._titles: dict[str, set[str]] = {}  # corpus hash -> the gold titles in it

    def retriever(self, target: Target) -> Retriever:
        """The index of `target`, which searches the target's number of cells."""
        if self._open is None or self._open[0] != target.folder:
            self._open = None  # frees its memory before the next one is read
            runtime = {"device": self._device} if target.meta["backend"] == "dense" else {}
            self._open = target.folder, load_index(target.folder, **runtime)
        if target.probes is not None:
            self._open[1].probe(target.probes)
        return self._open[1]

    def in_corpus(self, target: Target, questions: Sequence[Question]) -> float:
        """The highest possible recall: the mean share of a question's gold titles that some passage has."""
        corpus = target.meta["corpus_sha256"]
        if corpus not in self._titles:
            titles = (same_title(passage.title) for passage in PassageStore(target.folder))
            self._titles[corpus] = {title for title in titles if title in self._gold}
        found = self._titles[corpus]
        return sum(len(question.gold & found) / len(question.gold) for question in questions) / len(questions)


def measure(target: Target, asked: QuestionSet, indexes: Indexes, output_dir: Path) -> dict[str, Any]:
    """One row: `target` on the questions `asked`. A saved row is read instead of measured again."""
    content = [target.meta["files"], target.meta["options"], target.meta["corpus_sha256"]]
    name = f"{asked.name}-{target.meta['backend']}-{digest(RECORD, asked.content, content, target.probes)}"
    saved = output_dir / "rows" / f"{name}.json"
    row: dict[str, Any] = {"questions": asked.name, "backend": target.backend, "index": target.kind}
    if saved.is_file():
        return json.loads(saved.read_text(encoding="utf-8")) | row  # the folder may have had another name
    texts = [question.text for question in asked.questions]
    hits, speed = search_all(indexes.retriever(target), texts, max(KS), asked.name)
    titles = [[hit.passage.title for hit in found] for found in hits]
    for k in KS:
        row[f"recall@{k}"], row[f"all@{k}"] = recall(asked.questions, titles, k)
    size = sum(file["bytes"] for name, file in target.meta["files"].items() if name not in (PASSAGES, OFFSETS))
    row |= {"queries/s": speed, "build s": target.build_s, "index MiB": size / 2**20}
    row |= {"asked": len(asked.questions), "without_gold_titles": asked.without, "passages": target.meta["passages"]}
    row |= {"gold_titles_in_corpus": indexes.in_corpus(target, asked.questions), "options": target.meta["options"]}
    row |= {"probes": target.probes, "corpus_sha256": target.meta["corpus_sha256"], "asked_of": digest(asked.content)}
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    row |= {"time": time.strftime("%Y-%m-%d %H:%M:%S"), "machine": f"{machine()}, OMP_NUM_THREADS {threads}"}
    row["found"] = [[hit.passage.pid for hit in found] for found in hits]
    write_file(saved, json.dumps(row) + "\n")
    return row


def compare(rows: list[dict[str, Any]]) -> None:
    """Add same@10 to the rows of approximate indexes: the share of the exact index's ten passages that they found."""
    exact = {_origin(row): row["found"] for row in rows if row["options"].get("index") == "exact"}
    for row in rows:
        reference = exact.get(_origin(row), [])
        if row["options"].get("index") == "ivf" and any(reference):
            pairs = [(set(a), set(b)) for a, b in zip(row["found"], reference, strict=True) if b]
            row["same@10"] = sum(len(a & b) / len(b) for a, b in pairs) / len(pairs)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a Markdown table, questions together."""
    return measuring.table(COLUMNS, rows, {"queries/s": ",.0f", "build s": ",.0f", "index MiB": ",.1f"})


def read(path: Path, name: str, limit: int | None) -> QuestionSet:
    """The first `limit` questions of a file, or all. Raises ValueError, see `read_questions`."""
    questions, without = read_questions(path, limit)
    left_out = f", {without} without gold titles left out" if without else ""
    print(f"{path}: {len(questions)} questions{left_out}")
    return QuestionSet(name, questions, without, (file_sha256(path), limit))


def run(arguments: argparse.Namespace) -> None:
    """Measure what is missing, print the table, write OUTPUT/measure.json."""
    files = zip(arguments.questions, arguments.names, strict=True)
    asked = [read(path, name, arguments.max_questions) for path, name in files]  # malformed ones stop before the work
    targets = prepare(arguments)
    indexes = Indexes(arguments.device, frozenset().union(*(question.gold for a in asked for question in a.questions)))
    rows, total = [], len(targets) * len(asked)
    shares: dict[str, float] = {}
    for target in targets:
        for one in asked:
            rows.append(measure(target, one, indexes, arguments.output_dir))
            row, count = rows[-1], f"{len(rows):>{len(str(total))}}/{total}"
            found = f"recall@5 {row['recall@5']:.3f}  @10 {row['recall@10']:.3f}  {row['queries/s']:,.0f} queries/s"
            print(f"{count}  {one.name}  {row['backend']}, {row['index']}:  {found}", flush=True)
            shares[f"{one.name}, {target.label}" if target.label else one.name] = row["gold_titles_in_corpus"]
    compare(rows)
    print(f"\n{table(rows)}\n")
    for name, share in shares.items():
        if share < 1:
            print(f"{name}: some gold titles are not in the corpus; no recall can be above {share:.3f}")
    output = arguments.output_dir / "measure.json"
    shown = [{key: value for key, value in row.items() if key != "found"} for row in rows]
    write_file(output, json.dumps(shown, indent=1) + "\n")
    print(f"written to {output}; what each question found is in {arguments.output_dir / 'rows'}")


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line; ends with a message for flags that would do nothing."""
    parser = Parser(prog="python -m verl_ext.tools.retrieval.measure", description=__doc__)
    parser.add_argument("--questions", nargs="+", type=Path, required=True, help=".parquet of data_prep, or .jsonl")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--corpus", nargs="+", type=Path, help="corpus files, read as one corpus (.jsonl, .jsonl.gz)")
    source.add_argument("--index", nargs="+", type=Path, help="index folders of data_prep/corpus.py, as they are")
    parser.add_argument("--output_dir", type=Path, default=Path("data/retrieval"), help="indexes, rows, measure.json")
    parser.add_argument("--max_questions", type=positive, help="only the first ones of each file")
    parser.add_argument("--ivf_probes", nargs="+", type=positive, help="of ivf indexes (8 32 128; --index: as built)")
    parser.add_argument("--device", help="of the encoder: cpu, cuda, ...; by default its own choice")
    corpus = parser.add_argument_group("with --corpus")
    defaults: dict[str, Any] = {"backend": list(BACKENDS), "model": ["minilm"], "dense_index": ["exact", "ivf"]}
    defaults |= {"query_prefix": "", "passage_prefix": ""}
    corpus.add_argument("--backend", nargs="+", choices=BACKENDS, help="bm25 dense")
    corpus.add_argument("--model", nargs="+", help="minilm (the default), folders, hub names")
    corpus.add_argument("--dense_index", nargs="+", choices=INDEX_KINDS, help="exact ivf")
    corpus.add_argument("--query_prefix", help="text that the models want before a query")
    corpus.add_argument("--passage_prefix", help="text that the models want before a passage")
    arguments = parser.parse_args(argv)
    for name in defaults:
        if arguments.index and getattr(arguments, name) is not None:
            parser.error(f"--{name} would do nothing: the indexes of --index are built already")
    for name, remedy in unused(arguments):
        parser.error(f"--{name} would do nothing; {remedy} or leave it out")
    for name, default in defaults.items():
        setattr(arguments, name, default if getattr(arguments, name) is None else getattr(arguments, name))
    if arguments.corpus and arguments.ivf_probes is None:
        arguments.ivf_probes = [8, 32, 128]
    if arguments.index and len(set(arguments.index)) < len(arguments.index):
        parser.error("--index: the same folder is given twice")
    arguments.names = row_names(parser, "questions", arguments.questions)
    return arguments


def unused(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """(flag, remedy) of the flags given with --corpus that none of its indexes would use."""
    if arguments.index:
        return []  # targets.py checks them, when it has read which kind the indexes are
    if "dense" not in (arguments.backend or BACKENDS):
        flags = ("model", "dense_index", "query_prefix", "passage_prefix", "device", "ivf_probes")
        return [(flag, "add --backend dense") for flag in flags if getattr(arguments, flag) is not None]
    probing = arguments.dense_index is None or "ivf" in arguments.dense_index
    return [("ivf_probes", "add --dense_index ivf")] if arguments.ivf_probes and not probing else []


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status; user errors are printed without a traceback."""
    arguments = parse_arguments(argv)
    return exit_status(lambda: run(arguments), "stopped; the same command continues with the rows measured so far")


def _origin(row: dict[str, Any]) -> str:
    """Rows of equal origin ask the same questions of the same embeddings."""
    model = [row["options"].get(name) for name in ("model", "model_sha256", "query_prefix", "passage_prefix")]
    return digest(row["asked_of"], row["corpus_sha256"], model)


if __name__ == "__main__":
    sys.exit(main())
