"""Benchmarks of tools: prepared by data_prep, and evaluated by the command against a server that plays all roles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.evaluate.playing import ToolPlayer
from tests.public_data import SHARED
from tests.serving import ChatServer
from verl_ext.data_prep import tools
from verl_ext.tools.catalogue import load_catalogue

# Name, as in configs/base -> name and options of data_prep/tools.py, folder of the shared data, kind and file of the
# catalogue.
SETS = {
    "toolbench": ("toolbench", ["--sets", "G3_instruction"], "toolbench", "toolbench", "tools.jsonl"),
    "tmdb": ("restbench", ["--scenario", "tmdb"], "restbench", "openapi", "openapi.json"),
    "spotify": ("restbench", ["--scenario", "spotify"], "restbench", "openapi", "openapi.json"),
    "api_bank": ("api_bank", [], "api_bank", "api_bank", "tools.jsonl"),
    "toolhop": ("toolhop", [], "toolhop", "toolhop", "tools.jsonl"),
}


class Benchmark:
    """A data set, prepared.

    Args:
        name: of SETS. folder: for its files. source: file or folder of the data set instead of the shared one.

    Attributes:
        rows: of its test set. catalogue: its tools.
    """

    def __init__(self, name: str, folder: Path, source: Path | None = None):
        command, options, place, kind, file = SETS[name]
        self.name, self.folder, self.data = name, folder, folder / "data"
        source = source or SHARED / "tools" / place
        arguments = ["--output_dir", str(self.data), "--local_dataset_path", str(source), *options]
        assert tools.main([command, *arguments]) == 0
        self.sources = [{"kind": kind, "path": str(self.data / file)}]
        self.catalogue = load_catalogue(self.sources)
        self.rows = pq.read_table(self.data / "test.parquet").to_pylist()

    def evaluate(
        self, command: Any, player: ToolPlayer, *overrides: str, recipe: str, tasks: int = 4
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Run the command on the first `tasks` of each data source; returns (results per data source, records).

        {url} in an override stands for the address of the player.
        """
        written = "[" + ", ".join(f"{{kind: {one['kind']}, path: {one['path']}}}" for one in self.sources) + "]"
        with ChatServer(player) as server:
            settings = [
                f"mas.tools.tool_search.sources={written}",
                f"+mas.tools.tool_search.cache_dir={self.folder / 'index'}",
                f"mas.tools.tool_call.backend.cache={self.folder / 'simulator.db'}",
                f"mas.tools.tool_call.backend.endpoint={server.url}",
                f"evaluate.max_questions={tasks}",
            ]
            if (self.data / "recorded.jsonl").exists():
                settings.append(f"mas.tools.tool_call.recorded={self.data / 'recorded.jsonl'}")
            overrides = tuple(one.replace("{url}", server.url) for one in overrides)
            files = [self.data / "test.parquet"]
            assert command(*settings, *overrides, recipe=recipe, server=server, files=files) == 0
        return command.results["data"], command.records


def means_of(source: dict[str, Any]) -> dict[str, float]:
    """The means of a data source's results."""
    return {name: value["mean"] for name, value in source["metrics"].items()}


def small_restbench(folder: Path) -> Path:
    """A catalogue of two endpoints and two queries, made by hand."""
    search = {"parameters": [{"name": "query", "in": "query", "required": True, "schema": {"type": "string"}}]}
    credits = {"parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}]}
    paths = {"/search": {"get": search | {"summary": "Find films."}}, "/film/{id}": {"get": credits}}
    document = {"openapi": "3.0.0", "info": {"title": "t", "version": "1"}, "paths": paths}
    queries = [
        {"query": "Who made Titanic?", "solution": ["GET /search", "GET /film/{id}"]},
        {"query": "Find Jaws.", "solution": ["GET /search"]},
    ]
    folder.mkdir()
    (folder / "tmdb_oas.json").write_text(json.dumps(document))
    (folder / "tmdb_queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    return folder
