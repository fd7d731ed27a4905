"""Tasks with tools, end to end: data_prep, the shipped recipe, the command, a real server that plays all roles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.evaluate.benchmarks import SETS, Benchmark, means_of, small_restbench
from tests.evaluate.playing import Player
from tests.public_data import needs_shared
from tests.tools.openapi_server import serving

# An agent of a server folds and reads by another model, and finds its tools by words instead of a dense retriever.
SERVED = ["mas.tools.tool_search.method=bm25", "~mas.tools.tool_search.dense"]
SERVED += ["mas.agents.auxiliary.endpoint.url={url}"]


def evaluated(benchmark, command, player, *overrides, tasks=4):
    """DeepAgent's recipe of the benchmark; returns (results per data source, records)."""
    recipe = "deepagent" if benchmark.name == "toolbench" else f"deepagent_{benchmark.name}"
    return benchmark.evaluate(command, player, *SERVED, *overrides, recipe=recipe, tasks=tasks)


@needs_shared
@pytest.mark.parametrize(("name", "given"), [(name, number % 2 == 0) for number, name in enumerate(SETS)])
def test_a_competent_agent_succeeds_on_real_tasks(command, tmp_path, name, given):
    benchmark = Benchmark(name, tmp_path)
    player = Player(benchmark.rows, benchmark.catalogue, search=not given)
    results, records = evaluated(benchmark, command, player, f"mas.workflow.tools={'given' if given else 'search'}")
    for source in results.values():
        means = means_of(source)
        assert source["answered"] == 4 and means["success"] == means["path"] == means["path_complete"] == 1.0
        assert means["failed_calls"] == means["broken_actions"] == 0.0 and means["searches"] == float(not given)
        assert means["tool_calls"] == means["correct_calls"] >= 1.0
    shown = [tool["result"] for record in records for tool in record["tools"] if tool["name"] == "tool_search"]
    assert all(0 < len(found) for found in shown) and len(shown) == len(records)
    if name == "api_bank":
        assert player.asked["tool"] == 0 and list(results) == ["api_bank_level1"], "all calls are recorded"
    else:
        assert player.asked["tool"] > 0


@needs_shared
def test_an_agent_that_folds_goes_on_from_its_memories(command, tmp_path):
    benchmark = Benchmark("spotify", tmp_path)
    player = Player(benchmark.rows, benchmark.catalogue, fold=1, search=True)
    results, _ = evaluated(benchmark, command, player)
    means = means_of(results["spotify"])
    assert means["success"] == means["folds"] == 1.0 and means["refused_folds"] == 0.0
    assert player.asked["auxiliary"] >= 12, "three memories of each of four trajectories, and summaries"


def test_both_scenarios_on_hand_made_files(command, tmp_path, capsys):
    benchmark = Benchmark("tmdb", tmp_path, small_restbench(tmp_path / "source"))
    player = Player(benchmark.rows, benchmark.catalogue, search=True)
    results, records = evaluated(benchmark, command, player)
    means = means_of(results["tmdb"])
    assert means["success"] == means["path"] == 1.0 and (means["tool_calls"], means["searches"]) == (1.5, 1.0)
    assert player.asked == {"agent": 7, "tool": 2}, "the second search is in the simulator's cache"
    said = capsys.readouterr().out
    assert "| tmdb | 2/2      | 1.000 ± 0.000 |" in said and "| Searches      | 1.00 |" in said
    assert "Failed calls, Folds" in said

    again = Player(benchmark.rows, benchmark.catalogue)
    given = ["mas.workflow.tools=given", f"evaluate.output={tmp_path / 'given'}"]
    evaluated(benchmark, command, again, *given)
    assert again.asked == {"agent": 5}, "all of its calls are in the cache"
    sent = [json.loads(line) for line in (tmp_path / "given" / "trajectories.jsonl").read_text().splitlines()]
    assert all("GET /search" in record["calls"][0]["prompt"][1]["content"] for record in sent)


def test_its_tools_are_really_called(command, tmp_path, monkeypatch):
    """Against a server of the data set's own document; the second run replays its answers without it."""
    monkeypatch.setenv("FILM_KEY", "the-key")
    benchmark = Benchmark("tmdb", tmp_path, small_restbench(tmp_path / "source"))
    document = json.loads((benchmark.data / "openapi.json").read_text())
    player = Player(benchmark.rows, benchmark.catalogue)
    backend = "mas.tools.tool_call.backend."
    live = ["+base=live", f"{backend}endpoint=null", "mas.workflow.tools=given", f"{backend}key_env=FILM_KEY"]
    live += [f"+{backend}allow_private=true", f"+{backend}key_in=bearer"]
    with serving(document) as api:
        results, records = evaluated(benchmark, command, player, *live, f"{backend}server={api.url}")
    means = means_of(results["tmdb"])
    assert means["success"] == 1.0 and means["failed_calls"] == 0.0 and player.asked == {"agent": 5}
    assert sorted(one["target"] for one in api.asked) == ["/film/1", "/search?query=x"], "the same search is recorded"
    assert all(one["headers"]["authorization"] == "Bearer the-key" for one in api.asked)
    assert "the-key" not in json.dumps(records)
    monkeypatch.delenv("FILM_KEY")
    again = [*live, f"{backend}mode=replay", f"evaluate.output={tmp_path / 'again'}"]
    results, _ = evaluated(benchmark, command, Player(benchmark.rows, benchmark.catalogue), *again)
    assert means_of(results["tmdb"])["success"] == 1.0 and len(api.asked) == 2


def test_it_samples_as_the_recipe_validates(command, tmp_path):
    benchmark = Benchmark("tmdb", tmp_path, small_restbench(tmp_path / "source"))
    player = Player(benchmark.rows, benchmark.catalogue)
    evaluated(benchmark, command, player)
    sampled = [body for body in player.bodies if "stop" in body]
    assert {(body["temperature"], body["top_p"], body["top_k"]) for body in sampled} == {(0.7, 0.8, 20)}
    assert all(isinstance(body["seed"], int) for body in sampled)


def test_a_failing_simulator_is_told_to_the_agent_and_counted(command, tmp_path):
    benchmark = Benchmark("tmdb", tmp_path, small_restbench(tmp_path / "source"))
    player = Player(benchmark.rows, benchmark.catalogue)
    settings = ["mas.limits.tool_retries=0", "evaluate.concurrency=1"]
    player.said = "no JSON at all"
    results, _ = evaluated(benchmark, command, player, *settings)
    means = means_of(results["tmdb"])
    assert results["tmdb"]["answered"] == 2 and (means["success"], means["tool_failures"]) == (0.0, 1.5)
    assert results["tmdb"]["tool_failures"] == 3


def test_a_model_in_this_process_runs_the_same_way(command, tmp_path):
    model = Path(__file__).parents[2] / "recipe" / "mhgpo" / "assets" / "tiny_model"
    files = [tmp_path / "data" / "tiny_tools" / "val.parquet"]
    small = ["evaluate.max_questions=2", f"evaluate.model={model}", "mas.workflow.max_actions=2"]
    assert command(*small, recipe="toolpo_tiny", files=files) == 0
    made = command.results["data"]["tiny_tools"]
    assert made["answered"] == 2 and made["metrics"]["success"]["mean"] == 0.0, "it has not learned this world"
