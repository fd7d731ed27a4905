"""Where a played tool fails: what the model says of it is a failed call, not a result."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.serving import ChatServer, answer
from tests.tools.simulating import MOVIE, play, simulate
from verl_ext.tools.catalogue import Catalogue, Recorded, Toolbox
from verl_ext.tools.simulator import ResultCache, Simulator

CALL = {"query": "Titanic"}


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
