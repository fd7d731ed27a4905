"""The simulator's calls that no tool would take, models that answer nonsense, and servers that fail."""

from __future__ import annotations

import pytest

from tests.serving import ChatServer, answer
from tests.tools.simulating import counted, numbered, play, simulate
from verl_ext.tools import ToolError
from verl_ext.tools.simulator import ResultCache

CALL = {"query": "Titanic"}


def test_almost_json_is_repaired_and_counted(tmp_path):
    with ChatServer(lambda body, number: answer("{'a': [1, 2,],}")) as server:
        simulator = simulate(server, tmp_path / "c.db")
        assert play(simulator, CALL, CALL) == [{"a": [1, 2]}] * 2
    assert counted(simulator) == {"hits": 1, "misses": 1, "model_calls": 1, "repairs": 1}


@pytest.mark.parametrize(
    "first",
    [
        answer("I'm sorry, I cannot do that."),
        answer(""),
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
        (200, b"[" * 100_000),
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
