"""ToolBench: instructions for RapidAPI's APIs, with those that solve them (https://github.com/THUNLP-MT/StableToolBench,
Apache-2.0: the solvable test queries; https://github.com/OpenBMB/ToolBench: its own test queries, 100 of them G3, and
training instructions in the same layout, data/instruction/G1_query.json …).

    python data_prep/tools.py toolbench --output_dir data/toolbench --sets G3_instruction
    python data_prep/tools.py toolbench --output_dir data/toolbench_g3 --sets G3_instruction \\
        --local_dataset_path data/test_instruction \\
        --corpus data/retrieval/G1/corpus.tsv data/retrieval/G2/corpus.tsv data/retrieval/G3/corpus.tsv
    python data_prep/tools.py toolbench --test_size 100 --output_dir data/toolbench \\
        --local_dataset_path data/instruction

One row, shortened:
    {"query_id": 588, "query": "I'm a football enthusiast and I want to know more about Lionel Messi's career. …",
     "relevant APIs": [["TheClique", "Transfermarkt search"], ["TheClique", "Transfermarkt details"]],
     "api_list": [{"category_name": "Data", "tool_name": "TheClique", "api_name": "Songkick concert", …}, …]}
Its quirks: the relevant APIs have no order and no arguments, and there is no answer (ToolBench lets a model judge), so
that a task succeeds when all of them were called. Tools stand under several categories; `api_list` says which is meant.
A query shows its whole api_list, the relevant APIs among others.

The catalogue is --corpus (of the retriever: docid, document_content; or jsonl of documents), a file of documents beside
the queries, or what their api_list documents. Only the first has the 16,000 APIs over which the papers search: each of
the retriever's three files has a part of them, G3's the fewest.

ToolBench's folder data/instruction has the training queries (G1_query.json …), data/test_instruction the test queries.

Writes train.parquet and test.parquet, and tools.jsonl, the documents of the APIs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from verl_ext.data_prep.rows import Row, decoded, fetch_json, local_file, numbered, read_rows, text_field
from verl_ext.data_prep.tool_tasks import Prepared, ToolTask
from verl_ext.tools.catalogue.formats.toolbench import read_documents, tools_of
from verl_ext.tools.catalogue.search.queries import apis_of, listed_apis, relevant_apis
from verl_ext.tools.catalogue.types import Catalogue

HUB = "https://raw.githubusercontent.com/THUNLP-MT/StableToolBench/master/solvable_queries/test_instruction"
SETS = ("G1_instruction", "G1_category", "G1_tool", "G2_instruction", "G2_category", "G3_instruction")
QUERIES, DOCUMENTS = "solvable_queries.jsonl", "tool_catalogue.jsonl"


def prepare(arguments: argparse.Namespace) -> Prepared:
    """Read queries and documents. Raises ValueError."""
    rows = list(_source(arguments.local_dataset_path, arguments.sets))
    documents = _documents(arguments.corpus, arguments.local_dataset_path, rows)
    catalogue = Catalogue(tools_of(documents))  # as a run's tool_search reads them
    apis, prepared = apis_of(catalogue), Prepared(files={"tools.jsonl": [document for _, document in documents]})
    shown = 0
    for where, row in rows:
        prepared.read += 1
        name = f"{row['set']}-{row.get('query_id', where)}"
        gold = list(dict.fromkeys(relevant_apis(row, where, apis, catalogue)))
        unknown = [api for api in gold if api not in catalogue]
        if not gold:
            prepared.reject("no relevant API", name)
        elif unknown:
            prepared.reject("relevant APIs without a document", f"{name}: {unknown[0]}")
        else:
            listed = [*dict.fromkeys([*listed_apis(row, apis, catalogue), *gold])]
            source, question = f"toolbench_{row['set'].lower()}", text_field(row, "query", where)
            prepared.tasks.append(ToolTask(name, question, gold, data_source=source, shown=listed))
            shown += len(listed)
    prepared.notes.append(f"catalogue: {len(documents)} documents, {len(catalogue)} tools")
    needed, tasks = sum(len(task.path) for task in prepared.tasks), max(1, len(prepared.tasks))
    prepared.notes.append(f"shown: {shown / tasks:.1f} tools a task, of which it needs {needed / tasks:.1f}")
    return prepared


def _source(path: Path | None, sets: Sequence[str]) -> Iterator[Row]:
    """Rows with their set. Lists that some copies hold as JSON texts are read."""
    if path is None:
        for name in sets or SETS:
            rows = numbered(fetch_json(f"{HUB}/{name}.json"), f"{name}.json")
            yield from ((where, _row(row, name)) for where, row in rows)
        return
    folder = path.is_dir() and not (path / QUERIES).is_file()
    for file in sorted(path.glob("G*.json")) if folder else [local_file(path, [QUERIES])]:
        for where, row in read_rows(file):
            row = _row(row, file.stem)
            if not sets or row["set"] in sets:
                yield where, row


def _row(row: dict[str, Any], name: str) -> dict[str, Any]:
    """The row with its lists read, its set, and the text of a query that stands in a list of one (a few of G1's)."""
    lists = {key: decoded(row.get(key)) or [] for key in ("relevant APIs", "api_list")}
    query = row.get("query")
    query = query[0] if isinstance(query, list) and len(query) == 1 else query
    return {**row, **lists, "query": query, "set": row.get("set", name)}


def _documents(corpus: Sequence[Path], path: Path | None, rows: Sequence[Row]) -> list[Row]:
    """Documents of the corpus, else of a file beside the queries, else those in the queries; each once."""
    beside = path / DOCUMENTS if path is not None and (path / DOCUMENTS).is_file() else None
    if sources := corpus or ([beside] if beside else []):
        listed = [one for source in sources for one in read_documents(source)]
    else:
        listed = [(f"{where}: api_list", entry) for where, row in rows for entry in row["api_list"]]
        listed = [(where, entry) for where, entry in listed if isinstance(entry, dict)]
    if not listed:
        raise ValueError(
            f"no documents of the APIs: neither --corpus, nor {DOCUMENTS} beside the queries, nor in their api_list."
        )
    return list({json.dumps(entry, sort_keys=True): (where, entry) for where, entry in listed}.values())


def options(parser: argparse.ArgumentParser) -> None:
    """ToolBench's own options."""
    parser.add_argument("--sets", nargs="+", default=[], help=f"of the queries; all without it, e.g. {SETS[-1]}")
    corpus = "the catalogue: files corpus.tsv of ToolBench's retriever, or jsonl"
    parser.add_argument("--corpus", type=Path, nargs="+", default=[], help=corpus)
