"""Bursts of tool calls: a call waits for its turn, and none is lost because it waited longer than a time limit."""

import asyncio
import time

from tests.serving import ChatServer, answer
from tests.tools.requesting import running
from tests.tools.simulating import MOVIE, simulate
from tests.tools.test_retrieval_search import hit
from verl_ext.mas.forest import Cost
from verl_ext.mas.limits import Limits
from verl_ext.mas.tool_calls import attempt
from verl_ext.mas.types import CallId, Stream, ToolRecord
from verl_ext.tools import retrieval_server, simulator_server
from verl_ext.tools.catalogue import Catalogue
from verl_ext.tools.catalogue.toolbox import Toolbox
from verl_ext.tools.retrieval import HttpRetriever, SearchTool, batching
from verl_ext.tools.sandbox import RunPython
from verl_ext.tools.simulator import HttpSimulator
from verl_ext.tools.threads import Threads

# Limit of seconds for a call, calls of the burst, seconds for each of them. All of them take longer than the limit.
LIMIT, CALLS, EACH = 6.0, 100, 0.065


class Slow:
    """A retriever that takes a while for each query."""

    backend = "slow"

    def __len__(self):
        return 1

    def search(self, queries, k):
        time.sleep(EACH * len(queries))
        return [[hit(query)] for query in queries]


async def burst(tools, arguments):
    """The failures of one call per element of `arguments`, dealt to `tools` round robin, all of them at once."""
    threads = Threads()

    async def call(number):
        record = ToolRecord(CallId((), "tool", number), Stream("0"), "tool", arguments[number])
        tool = tools[number % len(tools)]
        return await attempt(record, tool, Limits(tool_timeout=LIMIT, tool_retries=0), Cost(), threads)

    done = await asyncio.gather(*(call(number) for number in range(len(arguments))))
    for tool in tools:
        await tool.close()
    return [record.failure for record in done if record.failure is not None]


def test_no_search_of_a_burst_is_lost(monkeypatch):
    """Neither before an index in the worker's process, nor before a server that refuses what it cannot take."""
    monkeypatch.setattr(batching, "MAX_BATCH", 8)
    asked = [{"queries": [f"query {number}"]} for number in range(CALLS)]
    assert asyncio.run(burst([SearchTool(Slow())], asked)) == []
    with running(retrieval_server.create_app(Slow(), max_waiting=16)) as url:
        tools = [SearchTool(HttpRetriever(url, timeout_s=LIMIT, attempts=1)) for _ in range(6)]
        assert asyncio.run(burst(tools, asked)) == []


def test_no_simulated_call_of_a_burst_is_lost(tmp_path):
    """Neither before a model, nor before a server that refuses what it cannot take."""
    asked = [{"name": MOVIE.name, "arguments": {"query": f"{number}"}} for number in range(CALLS)]
    catalogue, options = Catalogue([MOVIE]), {"concurrency": 4, "timeout_s": LIMIT}
    with ChatServer(lambda body, number: time.sleep(EACH) or answer("1")) as server:
        simulator = simulate(server, tmp_path / "a.db", **options)
        assert asyncio.run(burst([Toolbox(catalogue, simulator, timeout_s=LIMIT)], asked)) == []
        served = simulate(server, tmp_path / "b.db", **options)
        with running(simulator_server.create_app(served, catalogue, max_waiting=16)) as url:
            clients = [HttpSimulator(url, timeout_s=LIMIT, attempts=1) for _ in range(6)]
            assert asyncio.run(burst([Toolbox(catalogue, client, timeout_s=LIMIT) for client in clients], asked)) == []


def test_no_program_of_a_burst_is_lost():
    asked = [{"program": f"import time\ntime.sleep(0.33)\nprint({number})"} for number in range(20)]
    assert asyncio.run(burst([RunPython(workers=1)], asked)) == []
