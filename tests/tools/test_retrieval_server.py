"""The retrieval server as a real process, and its client against servers that are absent, slow or strange."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from verl_ext.tools import ToolError
from verl_ext.tools.retrieval import HttpRetriever, Passage, SearchTool, build_index, load_index, open_retriever
from verl_ext.tools.retrieval.types import MAX_QUERIES_PER_REQUEST
from verl_ext.tools.retrieval_server import MAX_BODY_BYTES

PASSAGES = [Passage(str(i), f"Title {i} ü", f"word{i} common group{i % 4} 東京") for i in range(60)]


def start(*arguments):
    """(process, url) of a server once it has said where it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "verl_ext.tools.retrieval_server", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = [process.stdout.readline(), process.stdout.readline()]
    match = re.search(r"mas\.tools\.search\.url=(http://\S+) \S+index=null \S+corpus=null$", lines[1])
    assert match, lines
    return process, match.group(1)


def stop(process):
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=15)
    return rest


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server") / "index"
    build_index(PASSAGES, folder)
    return folder


@pytest.fixture(scope="module")
def url(index):
    process, address = start("--index", str(index), "--port", "0")
    yield address
    stop(process)


@pytest.fixture(scope="module")
def local(index):
    return load_index(index)


def post(url, body, path="/search", kind="application/json"):
    """(status, parsed answer) of one raw request."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data=data, headers={"Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_health_and_search_answer_as_documented(url, local):
    client = HttpRetriever(url)
    assert client.health() == {"ready": True, "backend": "bm25", "passages": 60} and len(client) == 60
    status, answer = post(url, {"queries": ["word7", "nothing"], "k": 2})
    assert status == 200 and answer["hits"][1] == []
    hit = local.search(["word7"], 2)[0][0]
    assert answer["hits"][0] == [{"pid": "7", "title": "Title 7 ü", "text": PASSAGES[7].text, "score": hit.score}]


def test_client_gives_the_hits_of_the_local_index(url, local):
    queries = ["word3 common", "group1", "", "東京 ü", "\ud800 word1", "common " * 5000, "none"]
    client = open_retriever(url)
    assert client.search(queries, 7) == local.search(queries, 7)
    assert client.search([], 3) == []

    async def inside_a_running_loop():
        found = await client.asearch(queries, 7), client.search(queries, 7)
        await client.aclose()
        return found

    assert asyncio.run(inside_a_running_loop()) == (local.search(queries, 7),) * 2


def test_long_lists_are_sent_in_several_requests(url, local):
    queries = [f"word{i % 60} common" for i in range(2 * MAX_QUERIES_PER_REQUEST + 3)]
    assert HttpRetriever(url).search(queries, 2) == local.search(queries, 2)


def test_32_concurrent_clients_get_their_own_answers(url, local):
    """Each client is a SearchTool with its own connection; all calls run at once, and none is mixed up."""
    tools = [SearchTool(HttpRetriever(url), top_k=3 + i % 3, max_documents=20) for i in range(32)]
    reference = {k: SearchTool(local, top_k=k, max_documents=20) for k in (3, 4, 5)}
    calls = [(i, [f"word{(7 * i + j) % 60} common", f"group{j % 4} word{i}"]) for i in range(32) for j in range(6)]

    async def run():
        found = await asyncio.gather(*(tools[i](queries=queries) for i, queries in calls))
        expected = [await reference[3 + i % 3](queries=queries) for i, queries in calls]
        await asyncio.gather(*(tool.close() for tool in tools))
        return found, expected

    found, expected = asyncio.run(run())
    assert found == expected


@pytest.mark.parametrize(
    "body, message",
    [
        (b"{broken", "JSON"),
        ({}, "queries"),
        ({"queries": "who"}, "body.queries: Input should be a valid list"),
        ({"queries": ["a", 3]}, "body.queries.1: Input should be a valid string"),
        ({"queries": ["a"], "k": 0}, "body.k"),
        ({"queries": ["a"], "k": 10**9}, "body.k"),
        ({"queries": ["a"], "k": True}, "body.k"),
        ({"queries": ["a"], "topk": 3}, "body.topk: Extra inputs are not permitted"),
        ({"queries": ["a"] * (MAX_QUERIES_PER_REQUEST + 1)}, "at most 256"),
        ([], "body"),
    ],
)
def test_malformed_requests_get_422_and_the_reason(url, body, message):
    status, answer = post(url, body)
    assert status == 422 and message in answer["error"] and "expected" in answer["error"]
    assert len(answer["error"]) < 1000


def test_too_large_bodies_wrong_types_and_paths(url):
    assert post(url, b'{"queries": ["' + b"a" * MAX_BODY_BYTES + b'"]}')[0] == 413
    assert post(url, b'{"queries": ["a"]}', kind="text/plain")[0] == 422
    assert post(url, {}, path="/nothing")[0] == 404
    assert HttpRetriever(url).health()["ready"]


def test_a_refused_request_is_not_tried_again(url):
    client = HttpRetriever(url, attempts=5)

    async def run():
        await client._request("POST", "/search", {"queries": 3}, None)

    start_time = time.monotonic()
    with pytest.raises(ToolError, match="status 422.*valid list"):
        asyncio.run(run())
    assert time.monotonic() - start_time < 1.0


def test_more_documents_than_a_server_gives_are_refused_before_anything_is_sent():
    with pytest.raises(ValueError, match="k=1001: a retrieval server answers at most 1000"):
        HttpRetriever("http://127.0.0.1:1", attempts=1).search(["a"], 1001)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_unreachable_server_says_what_where_and_how_to_start_it():
    port = free_port()
    message = (
        rf"no answer from the retrieval server at http://127.0.0.1:{port}/search after 2 attempts "
        rf".*python -m verl_ext.tools.retrieval_server --index INDEX --host 127.0.0.1 --port {port}"
    )
    client = HttpRetriever(f"http://127.0.0.1:{port}", attempts=2, max_wait_s=0.05)
    with pytest.raises(ToolError, match=message):
        client.search(["a"], 1)

    async def use_the_tool():
        tool = SearchTool(client)
        try:
            await tool(queries=["a"])
        finally:
            await tool.close()

    with pytest.raises(ToolError, match=message):
        asyncio.run(use_the_tool())
    with pytest.raises(ToolError, match="/health after 1 attempts"):
        open_retriever({"url": f"http://127.0.0.1:{port}", "attempts": 1})
    assert open_retriever({"url": f"http://127.0.0.1:{port}", "check": False}).url.endswith(str(port))


async def serve(answers):
    """A TCP server that answers request i with answers[i] (the last one repeats); None: no answer at all."""
    seen = []

    async def handle(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        await reader.readexactly(int(length.group(1)) if length else 0)
        answer = answers[min(len(seen), len(answers) - 1)]
        seen.append(head)
        if answer is None:
            await asyncio.sleep(1.0)
        else:
            status, body = answer
            head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen


GOOD = (200, b'{"hits": [[{"pid": "1", "title": "t", "text": "x", "score": 1}]]}')


@pytest.mark.parametrize(
    "answers, requests, message",
    [
        ([(503, b"busy"), (500, b"oops"), GOOD], 3, None),
        ([(503, b"busy")], 4, "after 4 attempts .*503: busy"),
        ([None, GOOD], 2, None),
        ([(200, b"<html>")], 1, "not JSON"),
        ([(200, b'{"documents": []}')], 1, "unknown form"),
        ([(200, b'{"hits": []}')], 1, "0 lists for 1 queries"),
        ([(404, b"nothing here")], 1, "status 404: nothing here"),
    ],
)
def test_client_retries_what_may_pass_and_reports_the_rest(answers, requests, message):
    async def run():
        server, address, seen = await serve(answers)
        client = HttpRetriever(address, timeout_s=0.2, attempts=4, max_wait_s=0.01)
        try:
            return await client.asearch(["a"], 1), len(seen)
        except ToolError as error:
            return str(error), len(seen)
        finally:
            await client.aclose()
            server.close()

    found, count = asyncio.run(run())
    assert count == requests
    if message is None:
        assert found[0][0].passage == Passage("1", "t", "x")
    else:
        assert re.search(message, found)


@pytest.mark.parametrize("settings", [{"attempts": 0}, {"timeout_s": 0}, {"max_wait_s": -1}])
def test_client_settings_are_checked(settings):
    with pytest.raises(ValueError, match="attempts >= 1"):
        HttpRetriever("http://127.0.0.1:1", **settings)


def test_sigterm_ends_the_server_gracefully_and_its_port_is_free_again(index):
    port = str(free_port())
    for _ in range(2):
        process, address = start("--index", str(index), "--port", port)
        assert HttpRetriever(address).health()["ready"]
        assert stop(process).endswith("stopped\n") and process.returncode == 0


def test_a_running_request_is_answered_before_the_server_stops(index):
    process, address = start("--index", str(index), "--port", "0")
    words = " ".join(f"word{i} group{i % 4}" for i in range(60))
    slow = {"queries": [f"{i} {f'{words} ' * 10}" for i in range(256)], "k": 5}
    began = time.monotonic()
    assert post(address, slow)[0] == 200
    seconds = time.monotonic() - began
    with ThreadPoolExecutor(1) as executor:
        request = executor.submit(post, address, slow)
        time.sleep(seconds / 2)
        rest = stop(process)
        assert request.result()[0] == 200
    assert rest.endswith("stopped\n")


def test_start_errors_are_one_line_with_the_remedy(index, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for arguments, message in (
            (["--index", str(tmp_path / "none")], "no index at"),
            (["--index", str(index), "--port", port], "choose another --port"),
        ):
            command = [sys.executable, "-m", "verl_ext.tools.retrieval_server", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ)
            assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
