"""The client of the simulator's server against servers that are absent, busy or strange."""

from __future__ import annotations

import asyncio
import re
import threading

import pytest

from tests.serving import ChatServer
from tests.tools.requesting import post, running, serve
from tests.tools.simulating import MOVIE, ask, numbered, simulate
from verl_ext.tools import ToolError
from verl_ext.tools.catalogue import Catalogue
from verl_ext.tools.simulator import HttpSimulator
from verl_ext.tools.simulator_server import create_app

CALL = {"query": "Titanic"}


def test_a_call_waits_for_a_busy_server(tmp_path):
    async def scenario(url):
        client = HttpSimulator(url, attempts=1)
        first = asyncio.create_task(client(MOVIE, CALL))
        while not server.running:
            await asyncio.sleep(0.01)
        refused = await asyncio.to_thread(post, url, {"tool": MOVIE.name, "arguments": {"query": "b"}}, path="/call")
        free.set()
        found = [await first, await client(MOVIE, {"query": "b"})]
        await client.close()
        return refused, found

    free = threading.Event()
    with ChatServer(lambda body, number: free.wait(300) and numbered(body, number)) as server:
        simulator = simulate(server, tmp_path / "c.db")
        with running(create_app(simulator, Catalogue([MOVIE]), max_waiting=1)) as url:
            busy, found = asyncio.run(scenario(url))
    assert busy[0] == 503 and "1 simulated calls wait" in busy[1]["error"]
    assert found == [{"request": 0}, {"request": 1}]


async def refused(status, body, **options):
    """(the error of a call to a server with this one answer, number of failures counted)."""
    server, url, _ = await serve([(status, body)])
    client = HttpSimulator(url, **options)
    try:
        return (await asyncio.gather(client(MOVIE, CALL), return_exceptions=True))[0], client.counters.failures
    finally:
        await client.close()
        server.close()


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, b'{"hits": []}', "unknown form.*is it verl_ext's"),
        (200, b"[]", "unknown form"),
        (404, b"\xff nothing", "status 404"),
        (422, b'{"kind": ["x"]}', "status 422"),
        (422, b'{"kind": "invented", "error": "x"}', "status 422"),
    ],
)
def test_servers_that_are_no_simulator(status, body, words):
    found, failures = asyncio.run(refused(status, body, attempts=2))
    assert isinstance(found, ToolError) and re.search(words, str(found)) and failures == 1


def test_attempts_end_at_the_time_limit_of_the_call():
    found, failures = asyncio.run(refused(503, b"busy", attempts=100_000, timeout_s=0.3))
    assert isinstance(found, ToolError) and re.search("no answer from .* within 0.3 s", str(found)) and failures == 1


def test_nobody_there_says_how_to_start_one():
    ((found,), _) = ask("http://127.0.0.1:1", MOVIE, CALL, attempts=1)
    command = "simulator_server --catalogue KIND:FILE --cache FILE --endpoint URL --host 127.0.0.1 --port 1"
    assert isinstance(found, ToolError) and command in str(found)
