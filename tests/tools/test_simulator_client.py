"""The client of the simulator's server against servers that are absent, busy or strange."""

from __future__ import annotations

import asyncio
import re
import socket
import time

import pytest
import uvicorn

from tests.serving import ChatServer
from tests.tools.requesting import serve
from tests.tools.simulating import MOVIE, ask, numbered, simulate
from verl_ext.tools import ToolError
from verl_ext.tools.catalogue import Catalogue
from verl_ext.tools.simulator import HttpSimulator
from verl_ext.tools.simulator_server import create_app

CALL = {"query": "Titanic"}


def test_a_busy_server_is_tried_again(tmp_path):
    async def scenario(server):
        simulator = simulate(server, tmp_path / "c.db", max_waiting=1)
        listener = socket.create_server(("127.0.0.1", 0))
        app = uvicorn.Server(uvicorn.Config(create_app(simulator, Catalogue([MOVIE])), log_level="warning"))
        serving = asyncio.create_task(app.serve(sockets=[listener]))
        client = HttpSimulator(f"http://127.0.0.1:{listener.getsockname()[1]}", attempts=50)
        hasty = HttpSimulator(client.url, attempts=1)
        first = asyncio.create_task(client(MOVIE, CALL))
        while not server.running:
            await asyncio.sleep(0.01)
        refused = await asyncio.gather(hasty(MOVIE, {"query": "b"}), return_exceptions=True)
        found = [await first, await client(MOVIE, {"query": "b"})]
        await asyncio.gather(client.close(), hasty.close())
        app.should_exit = True
        await serving
        return refused[0], found

    with ChatServer(lambda body, number: time.sleep(0.4) or numbered(body, number)) as server:
        refused, found = asyncio.run(scenario(server))
    assert isinstance(refused, ToolError) and "status 503" in str(refused) and "1 simulated calls wait" in str(refused)
    assert found == [{"request": 0}, {"request": 1}]


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, b'{"hits": []}', "unknown form.*is it verl_ext's"),
        (200, b"[]", "unknown form"),
        (200, b"<html>", "not JSON"),
        (404, b"\xff nothing", "status 404"),
        (422, b'{"kind": ["x"]}', "status 422"),
        (422, b'{"kind": "invented", "error": "x"}', "status 422"),
        (500, b"oops", "after 2 attempts .*status 500: oops"),
    ],
)
def test_servers_that_are_no_simulator(status, body, words):
    async def scenario():
        server, url, _ = await serve([(status, body)])
        client = HttpSimulator(url, attempts=2)
        try:
            return (await asyncio.gather(client(MOVIE, CALL), return_exceptions=True))[0], client.counters.failures
        finally:
            await client.close()
            server.close()

    found, failures = asyncio.run(scenario())
    assert isinstance(found, ToolError) and re.search(words, str(found)) and failures == 1


def test_attempts_end_at_the_time_limit_of_the_call():
    async def scenario():
        server, url, _ = await serve([(503, b"busy")])
        client = HttpSimulator(url, attempts=100_000, timeout_s=0.5)
        try:
            return (await asyncio.gather(client(MOVIE, CALL), return_exceptions=True))[0], client.counters.failures
        finally:
            await client.close()
            server.close()

    found, failures = asyncio.run(scenario())
    assert isinstance(found, ToolError) and "no answer from" in str(found) and "within 0.5 s" in str(found)
    assert failures == 1


def test_nobody_there_says_how_to_start_one():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ((found,), _) = ask(f"http://127.0.0.1:{port}", MOVIE, CALL, attempts=1)
    assert isinstance(
        found, ToolError
    ) and f"simulator_server --catalogue KIND:FILE --cache FILE --endpoint URL --host 127.0.0.1 --port {port}" in str(
        found
    )
    with pytest.raises(ToolError, match="no answer from the simulator's server at .*/health"):
        HttpSimulator(f"http://127.0.0.1:{port}", attempts=1).health()
