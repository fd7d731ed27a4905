"""Shared by the programs that measure retrieval (retrieval/measure) and tool search (catalogue/search/measure)."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_ext.reports import markdown
from verl_ext.tools.retrieval.types import Hit, Retriever

BATCH = 64  # queries per call, as the server and the search tools make them
SECONDS = 1.0  # a speed is measured for at least this long


def search_all(retriever: Retriever, texts: Sequence[str], k: int, name: str = "") -> tuple[list[list[Hit]], float]:
    """(hits of each text, queries per second). Repeats the texts until SECONDS are over. name: of the progress bar."""
    from tqdm import tqdm

    retriever.search(list(texts[:1]), k)  # the first search loads and allocates
    hits: list[list[Hit]] = []
    searched, start = 0, time.perf_counter()
    with tqdm(total=len(texts), desc=name, unit="query", delay=2) as bar:
        while searched < len(texts) or time.perf_counter() - start < SECONDS:
            first = searched % len(texts)
            part = list(texts[first : first + BATCH])
            found = retriever.search(part, k)
            hits += found if searched < len(texts) else []
            searched += len(part)
            bar.update(min(len(part), len(texts) - bar.n))
    return hits, searched / (time.perf_counter() - start)


def table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], digits: Mapping[str, str], words: int = 3) -> str:
    """The rows as a Markdown table, sorted by the first column.

    digits: formats of columns whose numbers do not have three decimals. words: the first columns, which are text.
    """

    def cell(value: Any, column: str) -> str:
        if value is None:
            return "–"
        return value if isinstance(value, str) else format(value, digits.get(column, ".3f"))

    ordered = sorted(rows, key=lambda row: row[columns[0]])
    cells = [[cell(row.get(column), column) for column in columns] for row in ordered]
    return "\n".join(markdown(columns, cells, words=words))


def row_names(parser: argparse.ArgumentParser, flag: str, paths: Sequence[Path]) -> list[str]:
    """Names of the files in the table: their stems, after as many folders as tell them apart ("hotpotqa-test").

    Ends with a message if nothing tells two of them apart.
    """
    names: list[str] = []
    for folders in range(max(len(path.parts) for path in paths)):
        names = ["-".join([*path.parts[-1 - folders : -1], path.stem]).replace("/", "") for path in paths]
        if len(set(names)) == len(names):
            return names
    parser.error(f"--{flag}: the files need different names, because they name the rows; given {names}")
