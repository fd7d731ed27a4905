"""The simulator between a real chat server that misbehaves, a real cache, and results of real calls."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time

import pytest

from tests.serving import ChatServer, answer
from tests.tools.simulating import MOVIE, counted, numbered, play, simulate
from verl_ext.tools import ToolError
from verl_ext.tools.catalogue import Recorded
from verl_ext.tools.catalogue.types import CallError
from verl_ext.tools.simulator import ResultCache, Simulator
from verl_ext.tools.simulator.keys import call_key
from verl_ext.tools.simulator.player import Busy

CALL = {"query": "Titanic"}


def test_record_asks_once_and_remembers_over_restarts(tmp_path):
    with ChatServer(numbered) as server:
        first = simulate(server, tmp_path / "c.db", max_tokens=77)
        found = play(first, CALL, {"page": 1, "query": "Titanic"}, CALL, {"query": "Titanic", "page": 1.0})
        assert found == [{"request": number} for number in (0, 1, 0, 1)]
        assert counted(first) == {"hits": 2, "misses": 2, "model_calls": 2}
        again = simulate(server, tmp_path / "c.db")
        assert play(again, CALL) == [{"request": 0}] and counted(again) == {"hits": 1}
    asked = server.requests[0]
    assert (asked["temperature"], asked["max_tokens"], asked["model"]) == (0.0, 77, "tiny") and "seed" not in asked
    assert len(server.requests) == 2


def test_results_are_the_callers_own(tmp_path):
    with ChatServer(numbered) as server:
        first, second = play(simulate(server, tmp_path / "c.db"), CALL, CALL, at_once=True)
        first["request"] = "changed"
        assert second == {"request": 0} and play(simulate(server, tmp_path / "c.db"), CALL) == [{"request": 0}]


def test_replay_answers_from_the_cache_and_never_asks(tmp_path):
    with ChatServer(numbered) as server:
        play(simulate(server, tmp_path / "c.db"), CALL)
        before = (tmp_path / "c.db").read_bytes()
        asked = len(server.requests)
        replay = simulate(server, tmp_path / "c.db", mode="replay")
        hit, miss, bad = play(replay, CALL, {"query": "Alien"}, {"page": 1})
        assert hit == {"request": 0} and len(server.requests) == asked
    assert isinstance(miss, CallError) and miss.kind == "not_recorded" and not isinstance(miss, ToolError)
    assert str(miss) == "nothing is recorded of this call of GET /search/movie"
    assert isinstance(bad, CallError) and bad.kind == "bad_arguments"
    assert counted(replay) == {"hits": 1, "misses": 1}
    assert (tmp_path / "c.db").read_bytes() == before
    assert play(simulate(None, tmp_path / "c.db", mode="replay"), CALL) == [hit]  # nor is a model needed


def test_live_always_asks_and_leaves_the_recordings_alone(tmp_path):
    recorded = Recorded()
    recorded.add(MOVIE.name, CALL, "real")
    with ChatServer(numbered) as server:
        play(simulate(server, tmp_path / "c.db"), CALL)
        before = (tmp_path / "c.db").read_bytes()
        live = simulate(server, tmp_path / "c.db", mode="live", recorded=recorded)
        assert play(live, CALL, CALL) == [{"request": 1}, {"request": 2}]
        assert counted(live) == {"misses": 2, "model_calls": 2}
        assert play(simulate(server, mode="live"), CALL) == [{"request": 3}]
    assert (tmp_path / "c.db").read_bytes() == before


def test_results_of_real_calls_come_first(tmp_path):
    recorded = Recorded()
    recorded.add(MOVIE.name, CALL, {"real": "é"})
    recorded.add(MOVIE.name, {"query": "none"}, None)
    recorded.add(MOVIE.name, {}, None, "query is missing")  # the real tool's words, not the schema's
    with ChatServer(numbered) as server:
        play(simulate(server, tmp_path / "c.db"), CALL)
        simulator = simulate(server, tmp_path / "c.db", recorded=recorded)
        found = play(simulator, CALL, {"query": "none"}, {}, {"query": "Alien"})
        assert found[:2] == [{"real": "é"}, None] and found[3] == {"request": 1}
        assert isinstance(found[2], CallError) and str(found[2]) == "query is missing"
        assert counted(simulator) == {"recorded": 3, "misses": 1, "model_calls": 1}
        replay = simulate(None, tmp_path / "c.db", mode="replay", recorded=recorded)
        assert play(replay, CALL) == [{"real": "é"}]


def test_identical_calls_at_once_ask_once_others_do_not_wait_for_each_other(tmp_path):
    def slow(body, number):
        time.sleep(0.05)
        return numbered(body, number)

    with ChatServer(slow) as server:
        simulator = simulate(server, tmp_path / "c.db")
        calls = [{"query": f"film {number % 4}", "page": 1} for number in range(40)]
        found = play(simulator, *calls, at_once=True)
    assert len(server.requests) == 4 and counted(simulator) == {"misses": 40, "model_calls": 4}
    for number, result in enumerate(found):
        assert result == found[number % 4]
    assert len({json.dumps(result) for result in found}) == 4


def test_a_caller_who_gives_up_does_not_end_it_for_the_others_nor_for_the_next_attempt(tmp_path):
    """A toolbox's time limit cancels its call; the answer is there when it tries again."""
    free = threading.Event()
    # First "Paris", which is no JSON.
    with ChatServer(lambda body, number: answer("1") if number else free.wait(300) and answer()) as server:
        simulator = simulate(server, tmp_path / "c.db")

        async def scenario():
            impatient = asyncio.create_task(simulator(MOVIE, CALL))
            patient = asyncio.create_task(simulator(MOVIE, CALL))
            while not server.running:
                await asyncio.sleep(0.01)
            impatient.cancel()
            await asyncio.gather(impatient, return_exceptions=True)
            free.set()
            retried = await simulator(MOVIE, CALL)
            found = impatient.cancelled(), await patient, retried, simulator.waiting
            await simulator.close()
            return found

        assert asyncio.run(scenario()) == (True, 1, 1, 0)
    assert len(server.requests) == 2


def test_nobody_waits_any_more_and_it_fails_without_a_complaint(tmp_path, caplog):
    with ChatServer(lambda body, number: (400, {"error": "no"})) as server:
        simulator = simulate(server, tmp_path / "c.db")

        async def scenario():
            gone = asyncio.create_task(simulator(MOVIE, CALL))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            gone.cancel()
            while simulator.waiting:
                await asyncio.sleep(0.01)
            await simulator.close()

        asyncio.run(scenario())
        gc.collect()
    assert simulator.counters.failures == 1 and "never retrieved" not in caplog.text


def test_calls_wait_in_bounded_number(tmp_path):
    with ChatServer(lambda body, number: 0.3 if number < 3 else answer("1")) as server:
        simulator = simulate(server, tmp_path / "c.db", max_waiting=3)
        found = play(simulator, *[{"query": f"{number}"} for number in (0, 1, 2, 3, 0, 1)], at_once=True)
    assert isinstance(found[3], Busy) and [found[number] for number in (0, 1, 2, 4, 5)] == [1] * 5
    assert simulator.counters.failures == 0


def test_what_cannot_be_stored_is_no_result(tmp_path):
    """An answer that a replay would miss is not given."""
    with ChatServer(numbered) as server:
        simulator = simulate(server, tmp_path / "c.db")
        simulator.cache._writer.execute("PRAGMA query_only = 1")
        (failed,) = play(simulator, CALL)
    assert isinstance(failed, ToolError) and "readonly database" in str(failed)
    assert simulator.counters.failures == 1


def test_what_another_process_stored_meanwhile_is_what_everybody_gets(tmp_path):
    def stores_first(body, number):
        other = ResultCache(tmp_path / "c.db")
        other.store(call_key(MOVIE, CALL), '"first"', "other").result()
        other.close()
        return answer('"second"')

    with ChatServer(stores_first) as server:
        simulator = simulate(server, tmp_path / "c.db")
        assert play(simulator, CALL, CALL) == ["first", "first"]


def test_what_another_event_loop_had_under_way_is_asked_for_again(tmp_path):
    """A loop that stands still may never answer."""
    with ChatServer(lambda body, number: answer("1") if number else 30.0) as server:
        simulator, loop = simulate(server, tmp_path / "c.db"), asyncio.new_event_loop()
        stuck = loop.create_task(simulator(MOVIE, CALL))
        while not server.running:
            loop.run_until_complete(asyncio.sleep(0.01))
        assert simulator.waiting == 1
        assert asyncio.run(simulator(MOVIE, CALL)) == 1 and not stuck.done()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()
        asyncio.run(simulator.close())


def test_closing_ends_what_is_under_way(tmp_path):
    with ChatServer(lambda body, number: 30.0) as server:
        simulator = simulate(server, tmp_path / "c.db")

        async def scenario():
            waits = asyncio.create_task(simulator(MOVIE, CALL))
            while not server.running:
                await asyncio.sleep(0.01)
            await simulator.close()
            return (await asyncio.gather(waits, return_exceptions=True))[0], simulator.waiting

        found, waiting = asyncio.run(scenario())
    assert isinstance(found, asyncio.CancelledError) and waiting == 0 and simulator.counters.failures == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "recording"}, "mode is 'recording'; allowed: record, replay, live"),
        ({"mode": "record"}, "mode=record needs a cache"),
        ({"mode": "replay"}, "mode=replay needs a cache"),
        ({"mode": "live"}, "mode=live needs a model"),
        ({"mode": "record", "cache": "here"}, "mode=record needs a model. Remedy: endpoint=http://HOST:8100/v1"),
    ],
)
def test_what_a_mode_needs(options, words):
    with pytest.raises(ValueError, match=words):
        Simulator(**options)
