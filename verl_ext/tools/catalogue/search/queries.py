"""Queries with their gold tools, for measuring tool search.

Rows of jsonl files, in either of two forms; or test.parquet of data_prep/tools.py (API-Bank, ToolHop):

    {"query_id": 588, "query": "...", "relevant APIs": [["TheClique", "Transfermarkt search"], ...],
     "api_list": [["Data", "TheClique", "Transfermarkt search"], ...]}                                     ToolBench
    {"id": "tmdb-001", "query": "...", "solution_normalised": ["GET /search/movie", ...]}                  RestBench
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_ext.tools.catalogue.formats.files import field, read_rows
from verl_ext.tools.catalogue.types import Catalogue
from verl_ext.tools.retrieval.recall import Question, same_title

EXPECTED = '{"query", "relevant APIs": [[tool, API], ...]} or {"query", "solution": ["GET /path", ...]}'


@dataclass(frozen=True)
class Asked:
    """The queries of a file.

    questions: those whose gold tools are all in the catalogue. left_out: id of another query -> its gold tools that the
    catalogue lacks. without: number of queries without gold tools.
    """

    name: str
    questions: list[Question]
    left_out: dict[str, list[str]]
    without: int


def read_queries(path: Path, catalogue: Catalogue, limit: int | None = None) -> Asked:
    """The queries of a file: of its first `limit` rows, or of all.

    Raises:
        ValueError: the file is missing, a row is malformed, or no query is left.
    """
    apis = apis_of(catalogue)
    questions, left_out, without = [], {}, 0
    for number, (where, row) in enumerate(_prepared(path) if path.suffix == ".parquet" else read_rows(path, EXPECTED)):
        if number == limit:
            break
        text = field(row, "query", str, where)
        if "relevant APIs" in row:
            gold = list(relevant_apis(row, where, apis, catalogue))
        else:
            key = "solution_normalised" if "solution_normalised" in row else "solution"
            gold = [str(name).strip() for name in field(row, key, list, where)]
        missing = [name for name in gold if name not in catalogue]
        if missing:
            left_out[str(row.get("query_id", row.get("id", where)))] = missing
        elif gold:
            questions.append(Question(text, frozenset(map(same_title, gold))))
        without += not gold
    if not questions:
        raise ValueError(
            f"{path}: no query is left to measure: {len(left_out)} have gold tools that the catalogue does not have "
            f"(e.g. {next(iter(left_out.values()), [])}), {without} have none. Is it the catalogue of these queries?"
        )
    return Asked(path.stem, questions, left_out, without)


def _prepared(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a file that data_prep/tools.py has written, in RestBench's form."""
    import pyarrow.parquet as pq

    for number, row in enumerate(pq.read_table(path).to_pylist(), 1):
        where = f"{path} row {number}"
        try:
            calls = json.loads(row["reward_model"]["ground_truth"]["path"])
            names = [call if isinstance(call, str) else call["name"] for call in calls]
            query = row["prompt"][-1]["content"]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ValueError(
                f"{where}: no reward_model.ground_truth.path with names or calls ({error!r:.80}); give a file of "
                "data_prep/tools.py"
            ) from error
        yield where, {"query": query, "solution": names}


def apis_of(catalogue: Catalogue) -> dict[tuple[str, str], list[str]]:
    """ToolBench's (tool, API) -> its names in the catalogue, one per category."""
    apis: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, tool in catalogue.items():
        if "api_name" in tool.extra:
            apis[tool.extra["tool_name"], tool.extra["api_name"]].append(name)
    return apis


def relevant_apis(
    row: Mapping[str, Any], where: str, apis: Mapping[tuple[str, str], list[str]], catalogue: Catalogue
) -> Iterator[str]:
    """Names of the gold tools of a ToolBench query; "API of tool" for one that the catalogue lacks.

    If several categories have the tool, the query's `api_list` decides, with [category, tool, API] or the API's
    document.

    Raises:
        ValueError: the row is malformed.
    """
    listed = set(_listed(row))
    for pair in field(row, "relevant APIs", list, where):
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(f"{where}: a relevant API must be [tool, API], given {pair!r:.120}")
        tool, api = map(str, pair)
        names = apis.get((tool, api), [])
        meant = [name for name in names if (catalogue[name].extra["category_name"], tool, api) in listed]
        yield (meant or names or [f"{api} of {tool}"])[0]


def listed_apis(
    row: Mapping[str, Any], apis: Mapping[tuple[str, str], list[str]], catalogue: Catalogue
) -> Iterator[str]:
    """Names of the tools of a ToolBench query's `api_list`, those that the benchmark shows, in its order.

    Entries that the catalogue lacks are left out.
    """
    for category, tool, api in _listed(row):
        names = apis.get((tool, api), [])
        meant = [name for name in names if catalogue[name].extra["category_name"] == category]
        yield from (meant or names)[:1]


def _listed(row: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """(category, tool, API) of each entry of `api_list`, which is such a list or the API's document."""
    keys = ("category_name", "tool_name", "api_name")
    for entry in row.get("api_list") or []:
        names = [entry.get(key) for key in keys] if isinstance(entry, Mapping) else entry
        if isinstance(names, list) and len(names) == len(keys):
            yield tuple(map(str, names))
