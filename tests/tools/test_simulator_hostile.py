"""Models that answer nonsense or that the tool fails, and servers that fail."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.serving import ChatServer, answer
from tests.tools.simulating import MOVIE, counted, numbered, play, simulate
from verl_ext.tools import ToolError
from verl_ext.tools.catalogue import Catalogue, Recorded, Toolbox
from verl_ext.tools.simulator import ResultCache, Simulator

CALL = {"query": "Titanic"}


def test_almost_json_is_repaired_and_counted(tmp_path):
    with ChatServer(lambda body, number: answer("{'a': [1, 2,],}")) as server:
        simulator = simulate(server, tmp_path / "c.db")
        assert play(simulator, CALL, CALL) == [{"a": [1, 2]}] * 2
    assert counted(simulator) == {"hits": 1, "misses": 1, "model_calls": 1, "repairs": 1}


@pytest.mark.parametrize(
    "first",
    [
        answer(None, reasoning_content="Hm."),
        answer('{"results": [1, 2', "length"),
        answer('"' + "x" * 10_000_000 + '"'),
    ],
)
def test_an_answer_that_is_no_result_is_asked_for_once_more_with_the_reason(first, tmp_path):
    with ChatServer(lambda body, number: answer('{"ok": true}') if number else first) as server:
        simulator = simulate(server, tmp_path / "c.db")
        assert play(simulator, CALL) == [{"ok": True}]
        assert counted(simulator) == {"misses": 1, "model_calls": 2}
        second = server.requests[1]["messages"]
        assert second[1]["content"].startswith(server.requests[0]["messages"][1]["content"] + "\nANSWER ")
        assert "It cannot be used: it" in second[1]["content"] and len(second[1]["content"]) < 5000

    with ChatServer(lambda body, number: first) as server:
        simulator = simulate(server, tmp_path / "other.db")
        (failed,) = play(simulator, CALL)
        assert isinstance(failed, ToolError) and "cannot simulate GET /search/movie" in str(failed)
        assert "no JSON in two answers" in str(failed) and len(str(failed)) < 1000
        assert counted(simulator) == {"misses": 1, "model_calls": 2, "failures": 1} and len(server.requests) == 2
    empty = ResultCache(tmp_path / "other.db")
    assert empty.info()["results"] == 0
    empty.close()


@pytest.mark.parametrize(
    "behave",
    [
        (200, b'{"choices": [{"message": {"content": "\xff\xfe"}}]}'),
        (500, b"x" * 10_000_000),
        (401, {"error": "no key"}),
    ],
)
def test_a_broken_server_is_the_tools_failure_and_nothing_is_stored(behave, tmp_path):
    with ChatServer(lambda body, number: behave) as server:
        simulator = simulate(server, tmp_path / "c.db")
        (failed,) = play(simulator, CALL)
        assert isinstance(failed, ToolError) and str(server.url) in str(failed) and len(str(failed)) < 1000
        assert counted(simulator) == {"misses": 1, "model_calls": 1, "failures": 1}
        server.behave = numbered
        retried = simulate(server, tmp_path / "c.db")
        assert play(retried, CALL) == [{"request": 1}]  # a failure is not remembered


def test_a_server_that_is_slow_or_absent(tmp_path):
    with ChatServer(lambda body, number: 30.0) as server:
        simulator = simulate(server, tmp_path / "c.db", timeout_s=0.3)
        (slow,) = play(simulator, CALL)
    assert isinstance(slow, ToolError) and "has not simulated it within 0.3 s. Remedy: a faster server" in str(slow)
    absent = simulate(server, tmp_path / "c.db")
    (failed,) = play(absent, CALL)
    assert isinstance(failed, ToolError) and "cannot simulate" in str(failed) and absent.counters.failures == 1


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"error": "no such film"}, "no such film"),
        ({"error": ""}, f"{MOVIE.name} failed"),
        ({"error": {"code": 34}}, '{"error": {"code": 34}}'),
        ({"status": 404, "error": "none"}, '{"status": 404, "error": "none"}'),
        ({"error": True, "message": "none"}, '{"error": true, "message": "none"}'),
    ],
)
def test_a_played_tool_fails_where_the_model_says_so_and_from_the_cache_too(tmp_path, said, message):
    with ChatServer(lambda body, number: answer(json.dumps(said))) as server:
        box = Toolbox(Catalogue([MOVIE]), simulate(server, tmp_path / "c.db"))

        async def call_twice():
            answers = [await box(name=MOVIE.name, arguments=CALL) for _ in range(2)]
            await box.close()
            return answers

        first, second = asyncio.run(call_twice())
    assert first == second == {"ok": False, "error": message, "kind": "tool_error"}
    assert box.counts()["tool_error"] == 2 and box.counts()["hits"] == 1 and len(server.requests) == 1


@pytest.mark.parametrize("said", [{"error": None}, {"error": "", "data": 1}, {"error": 0.5}, [{"error": "x"}]])
def test_what_only_resembles_a_failure_is_a_result(tmp_path, said):
    with ChatServer(lambda body, number: answer(json.dumps(said))) as server:
        assert play(simulate(server, tmp_path / "c.db"), CALL) == [said]


def test_a_real_result_of_that_form_is_no_failure(tmp_path):
    recorded = Recorded()
    recorded.add(MOVIE.name, CALL, {"error": "as the real tool says when all is well"})
    simulator = Simulator(mode="replay", cache=ResultCache(tmp_path / "c.db"), recorded=recorded)
    assert play(simulator, CALL) == [{"error": "as the real tool says when all is well"}]
