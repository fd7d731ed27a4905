"""Measure tool search by itself: how many of a query's gold tools it finds, and how fast.

    python -m verl_ext.tools.catalogue.search.measure --catalogue toolbench:tool_catalogue.jsonl \\
        --queries solvable_queries.jsonl --k 1 5 10 20 --method bm25 dense hybrid
    python -m verl_ext.tools.catalogue.search.measure --catalogue openapi:tmdb_oas.json openapi:spotify_oas.json \\
        --queries tmdb_queries.jsonl spotify_queries.jsonl
    python -m verl_ext.tools.catalogue.search.measure --catalogue toolhop:data/toolhop/tools.jsonl \\
        --queries data/toolhop/test.parquet

The second table has paired differences over the queries, ± one standard error. The method `plain` is bm25s as its
manual uses it, over name and description: what the others have to beat. Several catalogues are searched as one. Indexes
are kept in the cache of tool search. docs/tools.md defines the columns.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from verl_ext.arguments import Parser, exit_status, positive
from verl_ext.reports import machine
from verl_ext.storage.files import write_file
from verl_ext.tools import measuring
from verl_ext.tools.catalogue.load import KINDS, load_catalogue
from verl_ext.tools.catalogue.search.queries import Asked, read_queries
from verl_ext.tools.catalogue.search.tool import METHODS, open_search
from verl_ext.tools.catalogue.types import Catalogue
from verl_ext.tools.measuring import row_names, search_all
from verl_ext.tools.retrieval.bm25 import library
from verl_ext.tools.retrieval.recall import recall
from verl_ext.tools.retrieval.types import Hit, Passage, Retriever

PLAIN = "plain"
ALL = (PLAIN, *METHODS)


def measure(retriever: Retriever, method: str, asked: Asked, ks: Sequence[int], open_s: float) -> dict[str, Any]:
    """One row of the table, and what each query found."""
    hits, speed = search_all(retriever, [question.text for question in asked.questions], max(ks))
    names = [[hit.passage.pid for hit in found] for found in hits]
    shares = {k: recall(asked.questions, names, k) for k in ks}
    row: dict[str, Any] = {"queries": asked.name, "asked": len(asked.questions), "tools": len(retriever)}
    row |= {"method": method, **{f"recall@{k}": shares[k][0] for k in ks}, **{f"all@{k}": shares[k][1] for k in ks}}
    return row | {"queries/s": speed, "open s": open_s, "found": names, "left_out": asked.left_out}


class PlainBM25:
    """bm25s with its own tokens and its 33 English stop words, over name (its words apart) and description."""

    backend = "plain"

    def __init__(self, catalogue: Catalogue):
        self._passages = [Passage(tool.name, tool.name, tool.description) for tool in catalogue.values()]
        texts = [f"{one.title.replace('_', ' ')} {one.text}" for one in self._passages]
        self._model = library().BM25()
        self._model.index(self._tokens(texts), show_progress=False)

    def __len__(self) -> int:
        return len(self._passages)

    def search(self, queries: list[str], k: int) -> list[list[Hit]]:
        k = min(k, len(self))
        rows, scores = self._model.retrieve(self._tokens(queries), k=k, show_progress=False)
        found = zip(rows, scores, strict=True)
        return [[Hit(self._passages[i], float(s)) for i, s in zip(*one, strict=True) if s > 0] for one in found]

    def _tokens(self, texts: list[str]) -> Any:
        return library().tokenize(texts, stopwords="en", show_progress=False)


def paired(rows: Sequence[dict[str, Any]], asked: Sequence[Asked], ks: Sequence[int]) -> list[dict[str, Any]]:
    """For each queries file and pair of methods: mean difference of recall@k over the queries, ± one standard error."""
    found = []
    for one in asked:
        own = [row for row in rows if row["queries"] == one.name]
        for other, row in combinations(own, 2):
            pair: dict[str, Any] = {"queries": one.name, "methods": f"{row['method']} − {other['method']}"}
            for k in ks:
                gains = [
                    recall([question], [names], k)[0] - recall([question], [before], k)[0]
                    for question, names, before in zip(one.questions, row["found"], other["found"], strict=True)
                ]
                error = stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
                pair[f"recall@{k}"] = f"{fmean(gains):+.3f} ± {error:.3f}"
            found.append(pair)
    return found


def describe(asked: Asked, ks: Sequence[int]) -> list[str]:
    """What is asked, in lines: how many queries, the best recall there can be, and which queries are left out."""
    lines = [f"{asked.name}: {len(asked.questions)} queries; {asked.without} without gold tools left out"]
    for k in ks:  # k tools cannot be all of more
        best = sum(min(k / len(question.gold), 1) for question in asked.questions) / len(asked.questions)
        lines += [f"  no recall@{k} can be above {best:.3f}: queries need several tools"] if best < 0.9995 else []
    if asked.left_out:
        lines.append(f"  {len(asked.left_out)} left out, because the catalogue lacks their gold tools:")
    return lines + [f"    {query}: {', '.join(names)}" for query, names in asked.left_out.items()]


def table(rows: Sequence[dict[str, Any]], ks: Sequence[int]) -> str:
    """The rows as a Markdown table, queries together."""
    columns = ["queries", "method", "asked", "tools"]
    columns += [*(f"recall@{k}" for k in ks), *(f"all@{k}" for k in ks), "queries/s", "open s"]
    digits = {"asked": ",d", "tools": ",d", "queries/s": ",.0f", "open s": ",.1f"}
    return measuring.table(columns, rows, digits, words=2)


def run(arguments: argparse.Namespace) -> None:
    """Measure, print the table, and write it where --output says."""
    sources = [dict(zip(("kind", "path"), text.split(":", 1), strict=False)) for text in arguments.catalogue]
    catalogue = load_catalogue(sources)
    files = zip(arguments.queries, arguments.names, strict=True)
    asked = [replace(read_queries(path, catalogue, arguments.max_queries), name=name) for path, name in files]
    print(f"{machine()}\n{len(catalogue):,} tools")
    for one in asked:
        print("\n".join(describe(one, arguments.k)), flush=True)
    rows = []
    for method in arguments.method:
        start = time.perf_counter()
        dense = {"model": arguments.model} if arguments.model and "dense" in METHODS.get(method, ()) else {}
        options = {"dense": dense, "cache_dir": arguments.cache_dir, "device": arguments.device}
        retriever: Retriever = (
            PlainBM25(catalogue) if method == PLAIN else open_search(catalogue, method, progress=True, **options)
        )
        seconds = time.perf_counter() - start
        for one in asked:
            rows.append(measure(retriever, method, one, arguments.k, seconds))
            first = arguments.k[-1]
            print(f"{one.name}, {method}: recall@{first} {rows[-1][f'recall@{first}']:.3f}", flush=True)
    print(f"\n{table(rows, arguments.k)}")
    if pairs := paired(rows, asked, arguments.k):
        columns = ["queries", "methods", *(f"recall@{k}" for k in arguments.k)]
        print(f"\n{measuring.table(columns, pairs, {}, words=2)}")
    if arguments.output:
        write_file(arguments.output, json.dumps(rows, indent=1) + "\n")
        print(f"\nwritten to {arguments.output}, with what each query found")


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = Parser(prog="python -m verl_ext.tools.catalogue.search.measure", description=__doc__)
    kinds = [kind for kind in KINDS if kind != "mcp"]
    parser.add_argument("--catalogue", nargs="+", required=True, metavar="KIND:PATH", help=f"KIND: {', '.join(kinds)}")
    parser.add_argument("--queries", nargs="+", type=Path, required=True, help="of ToolBench, RestBench, or prepared")
    parser.add_argument("--k", nargs="+", type=positive, default=[1, 5, 10, 20], help="tools found (1 5 10 20)")
    parser.add_argument(
        "--method", nargs="+", choices=(PLAIN, *METHODS), default=[PLAIN, *METHODS], help="all by default"
    )
    parser.add_argument("--model", help="of the dense index: minilm (the default), a folder, a hub name")
    parser.add_argument("--device", help="of the encoder: cpu, cuda, ...; by default its own choice")
    parser.add_argument("--cache_dir", type=Path, help="folder of the indexes; by default the user's cache folder")
    parser.add_argument("--max_queries", type=positive, help="only the first ones of each file")
    parser.add_argument("--output", type=Path, help="a .json file for the rows")
    arguments = parser.parse_args(argv)
    arguments.names = row_names(parser, "queries", arguments.queries)
    for flag in ("model", "device"):
        if getattr(arguments, flag) and arguments.method == ["bm25"]:
            parser.error(f"--{flag} would do nothing; add --method dense or leave it out")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status; user errors are printed without a traceback."""
    arguments = parse_arguments(argv)
    return exit_status(lambda: run(arguments), "stopped; the same command continues with the indexes built so far")


if __name__ == "__main__":
    sys.exit(main())
