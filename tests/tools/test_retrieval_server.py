"""The retrieval server, as a real process and under load."""

import asyncio
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import aiohttp
import pytest

from tests.tools import requesting
from tests.tools.test_retrieval_search import Recorder, until
from verl_ext.tools import retrieval_server
from verl_ext.tools.http.server import listen
from verl_ext.tools.retrieval import HttpRetriever, Passage, batching, build_index, load_index, open_retriever
from verl_ext.tools.retrieval.types import MAX_QUERIES_PER_REQUEST
from verl_ext.tools.retrieval_server import create_app

PASSAGES = [Passage(str(i), f"Title {i} ü", f"word{i} common group{i % 4} 東京") for i in range(60)]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server") / "index"
    build_index(PASSAGES, folder)
    return folder


@pytest.fixture(scope="module")
def url(index):
    """The documented command, until SIGTERM."""
    says = r"mas\.tools\.search\.url=(http://\S+) \S+index=null \S+corpus=null$"
    process, url = requesting.start("verl_ext.tools.retrieval_server", "--index", index, says=says)
    yield url
    assert requesting.stop(process) == "stopped\n" and process.returncode == 0


@pytest.fixture(scope="module")
def local(index):
    return load_index(index)


post = partial(requesting.post, path="/search")


def test_health_and_search_answer_as_documented(url, local):
    client = HttpRetriever(url)
    assert client.health() == {"ready": True, "backend": "bm25", "passages": 60} and len(client) == 60
    status, answer = post(url, {"queries": ["word7", "nothing"], "k": 2})
    assert status == 200 and answer["hits"][1] == []
    hit = local.search(["word7"], 2)[0][0]
    assert answer["hits"][0] == [{"pid": "7", "title": "Title 7 ü", "text": PASSAGES[7].text, "score": hit.score}]


def test_client_gives_the_hits_of_the_local_index(url, local):
    """Also for long lists, which are sent in several requests."""
    queries = ["word3 common", "group1", "", "東京 ü", "\ud800 word1", "common " * 5000, "none"]
    queries += [f"word{i % 60} common" for i in range(2 * MAX_QUERIES_PER_REQUEST)]
    client, expected = open_retriever(url), local.search(queries, 7)
    assert client.search(queries, 7) == expected and client.search([], 3) == []

    async def inside_a_running_loop():
        found = await client.asearch(queries, 7), client.search(queries, 7)
        await client.close()
        return found

    assert asyncio.run(inside_a_running_loop()) == (expected, expected)
    with pytest.raises(ValueError, match="k=1001: a retrieval server answers at most 1000"):
        client.search(["a"], 1001)


def test_malformed_requests_get_their_status_and_the_reason(url):
    for body, message in (
        (b"{broken", "JSON"),
        ({}, "queries"),
        ({"queries": "who"}, "queries: Input should be a valid array"),
        ({"queries": ["a", 3]}, "queries.1: Input should be a valid string"),
        ({"queries": ["a"], "k": 0}, "k: "),
        ({"queries": ["a"], "k": 10**9}, "k: "),
        ({"queries": ["a"], "k": True}, "k: "),
        ({"queries": ["a"], "topk": 3}, "topk: Extra inputs are not permitted"),
        ({"queries": ["a"] * (MAX_QUERIES_PER_REQUEST + 1)}, "at most 256"),
    ):
        status, answer = post(url, body)
        assert status == 422 and message in answer["error"] and "expected" in answer["error"], body
        assert len(answer["error"]) < 1000


HELD = """
import sys
from verl_ext.tools.http.server import listen, serve
from verl_ext.tools.retrieval_server import create_app

class Held:
    backend = "held"
    def __len__(self):
        return 1
    def search(self, queries, k):
        print("searching", flush=True)
        sys.stdin.readline()
        return [[] for _ in queries]

listener = listen("127.0.0.1", 0)
print(listener.getsockname()[1], flush=True)
serve(create_app(Held()), listener)
"""


def test_a_running_request_is_answered_before_the_server_stops():
    process = subprocess.Popen(
        [sys.executable, "-c", HELD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    port = int(process.stdout.readline())
    with ThreadPoolExecutor(1) as executor:
        request = executor.submit(post, f"http://127.0.0.1:{port}", {"queries": ["a"], "k": 1})
        assert process.stdout.readline() == "searching\n"
        process.send_signal(signal.SIGTERM)
        accepts = True
        while accepts:  # the server stops listening when it has seen the signal
            with socket.socket() as probe:
                accepts = probe.connect_ex(("127.0.0.1", port)) == 0
        process.stdin.write("\n")
        rest = process.communicate(timeout=500)[0]
        assert request.result() == (200, {"hits": [[]]}) and rest.endswith("stopped\n")
    listen("127.0.0.1", port).close()  # the port is free again


def test_start_errors_are_one_line_with_the_remedy(index, tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, message in (
            (["--index", str(tmp_path / "none")], "no index at"),
            (["--index", str(index), "--port", port], "choose another --port"),
        ):
            assert retrieval_server.main(arguments) == 2 and message in capsys.readouterr().err


@pytest.fixture
def loaded(monkeypatch):
    """Runs `program(url, retriever, batched)` beside a server whose searches are held."""
    monkeypatch.setattr(batching, "MAX_BATCH", 1)
    made = []
    monkeypatch.setattr(
        retrieval_server, "BatchedRetriever", lambda r: made.append(batching.BatchedRetriever(r)) or made[0]
    )

    def run(program, **settings):
        retriever = Recorder(held=True)
        with requesting.running(create_app(retriever, **settings)) as url:
            try:
                return asyncio.run(program(url, retriever, made[0]))
            finally:
                retriever.free.set()

    return run


def test_503_while_too_many_queries_wait_and_room_again_when_their_clients_go(loaded):
    async def program(url, retriever, batched):
        async with aiohttp.ClientSession() as session:

            async def ask(*queries):
                async with session.post(f"{url}/search", json={"queries": queries, "k": 1}) as response:
                    return response.status, await response.json()

            running = asyncio.create_task(ask("running"))
            await until(lambda: retriever.batches == [["running"]])
            waiting = asyncio.create_task(ask("a", "b", "c"))
            await until(lambda: batched.waiting == 3)
            refused = await ask("d", "e")
            waiting.cancel()
            await until(lambda: batched.waiting == 0)  # the server has noticed that the client has gone
            later = asyncio.create_task(ask("d", "e"))
            await until(lambda: batched.waiting == 2)
            retriever.free.set()
            return refused, (await running)[0], (await later)[0], retriever.batches

    (status, answer), *rest = loaded(program, max_waiting=4)
    assert status == 503 and "3 queries wait already, at most 4 may; try again later" in answer["error"]
    assert rest == [200, 200, [["running"], ["d", "e"]]]
