"""RestBench: instructions for TMDB's and Spotify's REST APIs, with the gold path of endpoints
(https://github.com/Yifan-Song793/RestGPT, MIT).

    python data_prep/tools.py restbench --scenario tmdb --output_dir data/restbench_tmdb
    python data_prep/tools.py restbench --scenario spotify --output_dir data/restbench_spotify \\
        --local_dataset_path RestGPT

One row of datasets/tmdb.json:
    {"query": "Who was the lead actor in the movie The Dark Knight?",
     "solution": ["GET /search/movie", "GET /movie/{movie_id}/credits"]}
Its quirks: some names have spaces around them, and two name no endpoint ("GET /track/{id}" of Spotify,
"GET /person/{movie_id}/movie_credits" of TMDB); all are corrected here. A task shows the whole API, as RestGPT does.
A path names no arguments, and there are no answers: a task succeeds if the calls follow its path (the paper's "correct
path").

Local folders have datasets/ and specs/ as the repository, or tmdb_queries.jsonl and tmdb_oas.json.

Writes test.parquet and openapi.json, the document of the endpoints.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from verl_ext.data_prep.rows import Row, fetch_json, list_field, local_file, numbered, read_rows, text_field
from verl_ext.data_prep.tool_tasks import Prepared, ToolTask
from verl_ext.tools.catalogue.formats.files import read_document
from verl_ext.tools.catalogue.formats.openapi import operations

HUB = "https://raw.githubusercontent.com/Yifan-Song793/RestGPT/main"
SCENARIOS = ("tmdb", "spotify")
CORRECTED = {
    "GET /track/{id}": "GET /tracks/{id}",
    "GET /person/{movie_id}/movie_credits": "GET /person/{person_id}/movie_credits",
}


def prepare(arguments: argparse.Namespace) -> Prepared:
    """Read one scenario. Raises ValueError."""
    name, prepared = arguments.scenario, Prepared()
    rows, document = _source(name, arguments.local_dataset_path)
    known = [tool.name for tool in operations(document, f"the OpenAPI document of {name}", {})]
    for number, (where, row) in enumerate(rows):
        prepared.read += 1
        task = parse(row, where, f"{name}-{number:03d}", name)
        unknown = [call for call in task.path if call not in known]
        if unknown:
            prepared.reject(f"endpoints that the document does not have, e.g. {unknown[0]!r}", task.id)
        elif not task.path:
            prepared.reject("no gold path", task.id)
        else:
            prepared.tasks.append(replace(task, shown=known))
    prepared.files["openapi.json"] = document
    return prepared


def parse(row: dict[str, Any], where: str, default_id: str, data_source: str) -> ToolTask:
    """A row as a task, its path with the names of the document. Raises ValueError."""
    key = "solution_normalised" if "solution_normalised" in row else "solution"
    path = [str(name).strip() for name in list_field(row, key, where)]
    question = text_field(row, "query", where)
    return ToolTask(
        str(row.get("id", default_id)), question, [CORRECTED.get(name, name) for name in path], data_source=data_source
    )


def _source(name: str, path: Path | None) -> tuple[Iterator[Row], dict[str, Any]]:
    if path is None:
        rows = numbered(fetch_json(f"{HUB}/datasets/{name}.json"), f"{name}.json")
        return rows, fetch_json(f"{HUB}/specs/{name}_oas.json")
    if path.is_file():
        raise ValueError(f"--local_dataset_path {path} must be a folder: queries and the OpenAPI document lie in it.")
    queries = local_file(path, [f"{name}_queries.jsonl", f"datasets/{name}.json"])
    return read_rows(queries), read_document(local_file(path, [f"{name}_oas.json", f"specs/{name}_oas.json"]))


def options(parser: argparse.ArgumentParser) -> None:
    """RestBench's own options."""
    parser.add_argument("--scenario", choices=SCENARIOS, required=True, help="whose API")
