"""The retrieval server under load: searches whose client has gone, too many waiting, and the client's time limits."""

import asyncio
import inspect
import re
import socket
import threading

import aiohttp
import pytest
import uvicorn

from verl_ext.mas.limits import Limits
from verl_ext.tools import ToolError
from verl_ext.tools.batching import AsyncBatcher
from verl_ext.tools.retrieval import Hit, HttpRetriever, Passage
from verl_ext.tools.retrieval.open import RetrieverConfig
from verl_ext.tools.retrieval_server import create_app


class Held:
    """A retriever whose searches end when `free` is set; it keeps the queries that it was given."""

    backend = "held"

    def __init__(self):
        self.searched, self.free = [], threading.Event()

    def __len__(self):
        return 1

    def search(self, queries, k):
        self.searched += queries
        assert self.free.wait(20)
        return [[Hit(Passage(query, "t", "x"), 1.0)] for query in queries]


async def until(condition):
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not reached within 5 s")


def with_server(program, **settings):
    """Runs `program(url, retriever)` beside a server in the same loop, behind a real socket."""

    async def run():
        retriever, listener = Held(), socket.create_server(("127.0.0.1", 0))
        app = create_app(retriever, max_batch=1, max_delay_s=0.0, **settings)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await until(lambda: server.started)
            return await program(f"http://127.0.0.1:{listener.getsockname()[1]}", retriever)
        finally:
            retriever.free.set()
            server.should_exit = True
            await serving

    return asyncio.run(run())


def test_searches_whose_client_has_gone_are_dropped():
    async def program(url, retriever):
        stays, goes = HttpRetriever(url), HttpRetriever(url, timeout_s=0.3, attempts=2, max_wait_s=0.0)
        first = asyncio.create_task(stays.asearch(["first"], 1))
        await until(lambda: retriever.searched == ["first"])
        with pytest.raises(ToolError, match="no answer within 0.3 s"):
            await goes.asearch(["gone"], 1)
        await asyncio.sleep(0.8)
        retriever.free.set()
        found = await first, await stays.asearch(["last"], 1)
        await asyncio.gather(stays.aclose(), goes.aclose())
        return [lists[0][0].passage.pid for lists in found], retriever.searched

    assert with_server(program) == (["first", "last"], ["first", "last"])


def test_503_while_too_many_queries_wait_and_room_again_when_their_clients_go():
    async def program(url, retriever):
        async with aiohttp.ClientSession() as session:

            async def ask(*queries):
                async with session.post(f"{url}/search", json={"queries": queries, "k": 1}) as response:
                    return response.status, await response.json()

            running = asyncio.create_task(ask("running"))
            await until(lambda: retriever.searched == ["running"])
            waiting = asyncio.create_task(ask("a", "b", "c"))
            refused = []

            async def full():
                refused.append(await asyncio.wait_for(ask("d", "e"), 5))

            await asyncio.sleep(0.2)
            await full()
            waiting.cancel()
            await asyncio.sleep(0.8)
            later = asyncio.create_task(ask("d", "e"))
            await asyncio.sleep(0.2)
            retriever.free.set()
            return refused[0], (await running)[0], (await later)[0], retriever.searched

    (status, answer), *rest = with_server(program, max_waiting=4)
    assert status == 503 and re.search("3 queries wait already, at most 4 may; try again later", answer["error"])
    assert rest == [200, 200, ["running", "d", "e"]]


def test_a_refused_search_is_tried_again_by_the_client():
    async def program(url, retriever):
        client = HttpRetriever(url, attempts=50, max_wait_s=0.05)
        searches = []
        for count, query in enumerate("ab", 1):
            searches.append(asyncio.create_task(client.asearch([query], 1)))
            await until(lambda: len(retriever.searched) == 1)
            await asyncio.sleep(0.1 * count)
        searches.append(asyncio.create_task(client.asearch(["c"], 1)))
        await asyncio.sleep(0.2)
        retriever.free.set()
        found = await asyncio.gather(*searches)
        await client.aclose()
        return [lists[0][0].passage.pid for lists in found]

    assert with_server(program, max_waiting=1) == ["a", "b", "c"]


def test_waiting_counts_live_callers_only():
    async def run():
        async def echo(items):
            return items

        batcher = AsyncBatcher(echo, max_delay_s=60)
        calls = [asyncio.create_task(batcher.submit(range(count))) for count in (2, 3)]
        await asyncio.sleep(0)
        before = batcher.waiting
        calls[0].cancel()
        await asyncio.sleep(0)
        after = batcher.waiting
        await batcher.close()
        await asyncio.gather(*calls, return_exceptions=True)
        return before, after

    assert asyncio.run(run()) == (5, 3)


def test_the_clients_attempts_end_before_the_time_limit_of_a_tool_call():
    defaults = {name: value.default for name, value in inspect.signature(HttpRetriever).parameters.items()}
    config = RetrieverConfig(url="http://127.0.0.1:1")
    assert (config.timeout_s, config.attempts) == (defaults["timeout_s"], defaults["attempts"]) == (15.0, 3)
    attempts = config.attempts * config.timeout_s + (config.attempts - 1) * defaults["max_wait_s"]
    assert attempts < Limits().tool_timeout
