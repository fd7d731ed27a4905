"""The client of the retrieval server against absent, slow or strange servers."""

import asyncio
import inspect
import re
import socket

import pytest

from tests.tools.requesting import serve
from verl_ext.mas.limits import Limits
from verl_ext.tools import ToolError
from verl_ext.tools.retrieval import HttpRetriever, Passage, SearchTool, open_retriever
from verl_ext.tools.retrieval.open import RetrieverConfig


def test_an_unreachable_server_says_what_where_and_how_to_start_it():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        client = HttpRetriever(f"http://127.0.0.1:{port}", attempts=2, max_wait_s=0.0)
        message = (
            rf"no answer from the retrieval server at http://127.0.0.1:{port}/search after 2 attempts "
            rf".*python -m verl_ext.tools.retrieval_server --index INDEX --host 127.0.0.1 --port {port}"
        )
        for call in (lambda: client.search(["a"], 1), lambda: asyncio.run(SearchTool(client)(queries=["a"]))):
            with pytest.raises(ToolError, match=message):
                call()
        with pytest.raises(ToolError, match="/health after 1 attempts"):
            open_retriever({"url": f"http://127.0.0.1:{port}", "attempts": 1})
        assert open_retriever({"url": f"http://127.0.0.1:{port}", "check": False}).url.endswith(str(port))


GOOD = (200, b'{"hits": [[{"pid": "1", "title": "t", "text": "x", "score": 1}]]}')


@pytest.mark.parametrize(
    "answers, requests, message",
    [
        ([(503, b"busy"), (500, b"oops"), GOOD], 3, None),
        ([(503, b"busy")], 4, "after 4 attempts .*503: busy"),
        ([None], 4, "no answer within 0.05 s"),
        ([(200, b"<html>")], 1, "not JSON"),
        ([(200, b'{"documents": []}')], 1, "unknown form"),
        ([(200, b'{"hits": []}')], 1, "0 lists for 1 queries"),
        ([(404, b"nothing here")], 1, "status 404: nothing here"),
        ([(422, b"a list, please")], 1, "status 422: a list, please"),
    ],
)
def test_client_retries_transient_failures_and_reports_the_rest(answers, requests, message):
    async def run():
        server, address, seen = await serve(answers)
        timeout = 0.05 if answers == [None] else 60
        client = HttpRetriever(address, timeout_s=timeout, attempts=4, max_wait_s=0.0)
        try:
            return await client.asearch(["a"], 1), len(seen)
        except ToolError as error:
            return str(error), len(seen)
        finally:
            await client.close()
            server.close()

    found, count = asyncio.run(run())
    assert count == requests
    if message is None:
        assert found[0][0].passage == Passage("1", "t", "x")
    else:
        assert re.search(message, found)


def test_a_server_of_something_else_is_noticed():
    async def run():
        server, address, _ = await serve([(200, b'{"ready": true}')])
        try:
            await asyncio.to_thread(HttpRetriever(address).health)
        finally:
            server.close()

    with pytest.raises(ToolError, match="/health answered .* no retrieval server of verl_ext, or not ready"):
        asyncio.run(run())


def test_a_blocking_request_leaves_those_that_wait_for_their_turn_alone(monkeypatch):
    monkeypatch.setattr("verl_ext.tools.http.client.CONCURRENT", 1)

    async def run():
        begun, free = asyncio.Event(), asyncio.Event()

        async def answer(reader, writer):
            head = await reader.readuntil(b"\r\n\r\n")
            body = b'{"ready": true, "passages": 3}' if b"/health" in head else GOOD[1]
            if b"/search" in head:
                begun.set()
                await free.wait()
            writer.write(b"HTTP/1.1 200 X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body))
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        client = HttpRetriever(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        searches = [asyncio.ensure_future(client.asearch(["a"], 1)) for _ in range(2)]
        await begun.wait()
        assert await asyncio.to_thread(len, client) == 3
        free.set()
        ended, _ = await asyncio.wait(searches, timeout=30)
        await client.close()
        server.close()
        return len(ended)

    assert asyncio.run(run()) == 2


def test_the_clients_attempts_end_before_the_time_limit_of_a_tool_call():
    defaults = {name: value.default for name, value in inspect.signature(HttpRetriever).parameters.items()}
    config = RetrieverConfig(url="http://127.0.0.1:1")
    assert (config.timeout_s, config.attempts) == (defaults["timeout_s"], defaults["attempts"]) == (15.0, 3)
    attempts = config.attempts * config.timeout_s + (config.attempts - 1) * defaults["max_wait_s"]
    assert attempts < Limits().tool_timeout
