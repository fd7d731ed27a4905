"""Tasks with tools, end to end: data_prep, the shipped recipe, the command, a real server that plays all roles."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.evaluate.playing import Player
from tests.serving import ChatServer
from verl_ext.data_prep import api_bank, restbench, tool_tasks, toolbench, toolhop
from verl_ext.tools.catalogue import load_catalogue

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "tools"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the shared data are not at {SHARED}")

# Recipe -> script, its options, the folder of the shared data, kind and file of the catalogue.
SETS = {
    "deepagent": (toolbench, ["--sets", "G3_instruction"], "toolbench", "toolbench", "tools.jsonl"),
    "deepagent_tmdb": (restbench, ["--scenario", "tmdb"], "restbench", "openapi", "openapi.json"),
    "deepagent_spotify": (restbench, ["--scenario", "spotify"], "restbench", "openapi", "openapi.json"),
    "deepagent_api_bank": (api_bank, [], "api_bank", "api_bank", "tools.jsonl"),
    "deepagent_toolhop": (toolhop, [], "toolhop", "toolhop", "tools.jsonl"),
}


class Benchmark:
    """A data set, prepared, and its evaluation against a player."""

    def __init__(self, recipe, source, folder, *options):
        script, fixed, _, kind, file = SETS[recipe]
        self.recipe, self.folder, self.data = recipe, folder, folder / "data"
        arguments = ["--output_dir", str(self.data), "--local_dataset_path", str(source), *fixed, *options]
        assert tool_tasks.main(script.prepare, "", getattr(script, "options", lambda parser: None), arguments) == 0
        self.sources = [{"kind": kind, "path": str(self.data / file)}]
        self.catalogue = load_catalogue(self.sources)
        self.rows = pq.read_table(self.data / "test.parquet").to_pylist()

    def evaluate(self, command, player, *overrides, tasks=4):
        """Run the command; returns (results per data source, records)."""
        written = "[" + ", ".join(f"{{kind: {one['kind']}, path: {one['path']}}}" for one in self.sources) + "]"
        with ChatServer(player) as server:
            settings = [
                f"mas.tools.tool_search.sources={written}",
                f"+mas.tools.tool_search.cache_dir={self.folder / 'index'}",
                "mas.tools.tool_search.method=bm25",
                "~mas.tools.tool_search.dense",
                f"mas.tools.tool_call.backend.cache={self.folder / 'simulator.db'}",
                f"mas.tools.tool_call.backend.endpoint={server.url}",
                f"mas.agents.auxiliary.endpoint.url={server.url}",
                f"evaluate.max_questions={tasks}",
            ]
            if "recorded.jsonl" in {path.name for path in self.data.iterdir()}:
                settings.append(f"mas.tools.tool_call.recorded={self.data / 'recorded.jsonl'}")
            files = [self.data / "test.parquet"]
            assert command(*settings, *overrides, recipe=self.recipe, server=server, files=files) == 0
        return command.results["data"], command.records


@needs_shared
@pytest.mark.parametrize("recipe", SETS)
@pytest.mark.parametrize("given", [True, False])
def test_a_competent_agent_succeeds_on_real_tasks(command, tmp_path, recipe, given):
    benchmark = Benchmark(recipe, SHARED / SETS[recipe][2], tmp_path)
    player = Player(benchmark.rows, benchmark.catalogue, search=not given)
    results, records = benchmark.evaluate(command, player, f"mas.workflow.given_tools={str(given).lower()}")
    for source in results.values():
        means = {name: value["mean"] for name, value in source["metrics"].items()}
        assert source["answered"] == 4 and means["success"] == means["path"] == means["path_complete"] == 1.0
        assert means["failed_calls"] == means["broken_actions"] == 0.0 and means["searches"] == float(not given)
        assert means["tool_calls"] == means["correct_calls"] >= 1.0
    shown = [tool["result"] for record in records for tool in record["tools"] if tool["id"].startswith("tool:tool_s")]
    assert all(0 < len(found) for found in shown) and len(shown) == len(records)
    if recipe == "deepagent_api_bank":
        assert player.asked["tool"] == 0 and len(results) == 3, "all calls are recorded"
    else:
        assert player.asked["tool"] > 0


@needs_shared
def test_an_incompetent_agent_fails_and_is_stopped(command, tmp_path):
    benchmark = Benchmark("deepagent_tmdb", SHARED / "restbench", tmp_path)
    player = Player(benchmark.rows, benchmark.catalogue, competent=False)
    results, _ = benchmark.evaluate(command, player, "mas.workflow.max_actions=6")
    means = {name: value["mean"] for name, value in results["tmdb"]["metrics"].items()}
    assert results["tmdb"]["answered"] == 4 and not results["tmdb"]["failed"], "it is no failure of the machinery"
    assert means["success"] == means["path"] == means["correct_calls"] == 0.0
    assert (means["limit_actions"], means["actions"], means["broken_actions"], means["failed_calls"]) == (1, 6, 4, 2)
    assert player.asked == {"agent": 28, "auxiliary": 0, "tool": 0}


@needs_shared
def test_an_agent_that_folds_goes_on_from_its_memories(command, tmp_path):
    benchmark = Benchmark("deepagent_spotify", SHARED / "restbench", tmp_path)
    player = Player(benchmark.rows, benchmark.catalogue, fold=1, search=True)
    results, _ = benchmark.evaluate(command, player)
    means = {name: value["mean"] for name, value in results["spotify"]["metrics"].items()}
    assert means["success"] == means["folds"] == 1.0 and means["refused_folds"] == 0.0
    assert player.asked["auxiliary"] >= 12, "three memories of each of four trajectories, and summaries"


def small_restbench(folder):
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


def test_both_scenarios_on_hand_made_files(command, tmp_path, capsys):
    benchmark = Benchmark("deepagent_tmdb", small_restbench(tmp_path / "source"), tmp_path)
    player = Player(benchmark.rows, benchmark.catalogue, search=True)
    results, records = benchmark.evaluate(command, player)
    means = {name: value["mean"] for name, value in results["tmdb"]["metrics"].items()}
    assert means["success"] == means["path"] == 1.0 and (means["tool_calls"], means["searches"]) == (1.5, 1.0)
    assert player.asked == {"agent": 7, "auxiliary": 0, "tool": 2}, "the second search is in the simulator's cache"
    said = capsys.readouterr().out
    assert "| tmdb | 2/2      | 1.000 ± 0.000 |" in said and "| Searches      | 1.00 |" in said
    assert "0 everywhere: Failed calls, Folds" in said

    again = Player(benchmark.rows, benchmark.catalogue)
    given = ["mas.workflow.given_tools=true", f"evaluate.output={tmp_path / 'given'}"]
    benchmark.evaluate(command, again, *given)
    assert again.asked == {"agent": 5, "auxiliary": 0, "tool": 0}, "all of its calls are in the cache"
    sent = [json.loads(line) for line in (tmp_path / "given" / "trajectories.jsonl").read_text().splitlines()]
    assert all("GET /search" in record["calls"][0]["messages"][1]["content"] for record in sent)


def test_it_samples_as_the_recipe_validates(command, tmp_path):
    benchmark = Benchmark("deepagent_tmdb", small_restbench(tmp_path / "source"), tmp_path)
    player = Player(benchmark.rows, benchmark.catalogue)
    benchmark.evaluate(command, player)
    sampled = [body for body in player.bodies if "stop" in body]
    assert {(body["temperature"], body["top_p"], body["top_k"]) for body in sampled} == {(0.7, 0.8, 20)}
    assert all(isinstance(body["seed"], int) for body in sampled)


def test_an_interrupted_evaluation_goes_on(command, tmp_path):
    benchmark = Benchmark("deepagent_tmdb", small_restbench(tmp_path / "source"), tmp_path)
    benchmark.evaluate(command, Player(benchmark.rows, benchmark.catalogue), tasks=1)
    player = Player(benchmark.rows, benchmark.catalogue)
    results, records = benchmark.evaluate(command, player, tasks=2)
    assert len(records) == 2 and results["tmdb"]["answered"] == 2 and player.asked["agent"] == 2


def test_a_failing_simulator_is_told_to_the_agent_and_counted(command, tmp_path):
    benchmark = Benchmark("deepagent_tmdb", small_restbench(tmp_path / "source"), tmp_path)
    player = Player(benchmark.rows, benchmark.catalogue)
    settings = ["mas.limits.tool_retries=0", "evaluate.concurrency=1"]
    player.said = "no JSON at all"
    results, _ = benchmark.evaluate(command, player, *settings)
    means = {name: value["mean"] for name, value in results["tmdb"]["metrics"].items()}
    assert results["tmdb"]["answered"] == 2 and (means["success"], means["tool_failures"]) == (0.0, 1.5)
    assert results["tmdb"]["tool_failures"] == 3


def test_a_model_in_this_process_runs_the_same_way(command, tmp_path):
    model = Path(__file__).parents[2] / "recipe" / "mhgpo" / "assets" / "tiny_model"
    files = [tmp_path / "data" / "tiny_tools" / "val.parquet"]
    small = ["evaluate.max_questions=2", f"evaluate.model={model}", "mas.workflow.max_actions=2"]
    assert command(*small, recipe="toolpo_tiny", files=files) == 0
    made = command.results["data"]["tiny_tools"]
    assert made["answered"] == 2 and made["metrics"]["success"]["mean"] == 0.0, "it has not learned this world"
