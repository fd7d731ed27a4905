"""Requests at once to one HTTP server: complete ones, slow ones, half-sent ones, and ones whose client goes away."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.serving import ChatServer, answer
from tests.tools import requesting
from tests.tools.simulating import MOVIE, simulate
from verl_ext.tools.catalogue import Catalogue
from verl_ext.tools.retrieval import Passage, build_index
from verl_ext.tools.simulator_server import create_app

KINDS = ("whole", "whole", "slow", "half", "gone")
# Connections that are being opened at a time.
OPENING = 500


@contextmanager
def retrieval() -> Iterator[tuple[str, str]]:
    """(url, path) of a server process with a small index."""
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        build_index([Passage(str(i), f"Title {i}", f"word{i} common") for i in range(500)], index)
        says = r"mas\.tools\.search\.url=(http://\S+)"
        process, url = requesting.start("verl_ext.tools.retrieval_server", "--index", index, says=says)
        try:
            yield url, "/search"
        finally:
            requesting.stop(process)


@contextmanager
def simulator() -> Iterator[tuple[str, str]]:
    """(url, path) of a simulator's server on a model that answers at once."""
    with tempfile.TemporaryDirectory() as folder, ChatServer(lambda *_: answer("1")) as model:
        app = create_app(simulate(model, Path(folder) / "cache.db"), Catalogue([MOVIE]))
        with requesting.running(app) as url:
            yield url, "/call"


SERVERS = {"retrieval": retrieval, "simulator": simulator}


def body_of(name: str, number: int) -> bytes:
    """A request's body; each is another one."""
    if name == "retrieval":
        return json.dumps({"queries": [f"word{number % 500} common"], "k": 3}).encode()
    return json.dumps({"tool": MOVIE.name, "arguments": {"query": f"{number}"}}).encode()


async def request(kind: str, url: str, path: str, body: bytes, opening: asyncio.Semaphore) -> str:
    """How one request of this kind ended, in words; a busy server is asked again, as its answer says."""
    place = urlsplit(url)
    head = f"POST {path} HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    data = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    for refused in itertools.count():
        async with opening:
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
        try:
            if kind == "half":
                writer.write(data[: random.randrange(1, len(data))])
                return "half-sent, dropped by the server" if not await reader.read() else "half-sent, ANSWERED"
            step = 40 if kind == "slow" else len(data)
            for start in range(0, len(data), step):
                writer.write(data[start : start + step])
                await asyncio.sleep(0.3 if kind == "slow" else 0)
            if kind == "gone":
                await asyncio.sleep(random.random() * 0.2)
                return "client gone"
            found = (await reader.read()).decode()
        finally:
            writer.close()
        status, _, content = found[9:12], *found.partition("\r\n\r\n")[1:]
        if status == "200" and json.loads(content):
            return "answered"
        if status == "503" and "retry-after: " in found.lower():
            await asyncio.sleep(min(1.5**refused, 10.0) * random.uniform(0.5, 1.5))
            continue
        return f"LOST: {found[:200]!r}"
    raise AssertionError("unreachable")


async def all_of(name: str, url: str, path: str, count: int) -> Counter[str]:
    """How `count` requests at once ended."""
    opening = asyncio.Semaphore(OPENING)
    work = [request(KINDS[i % len(KINDS)], url, path, body_of(name, i), opening) for i in range(count)]
    done = await asyncio.gather(*(asyncio.wait_for(one, 300) for one in work), return_exceptions=True)
    return Counter(one if isinstance(one, str) else f"LOST: {one!r}" for one in done)


def requests(name: str, count: int) -> tuple[str, int, str, int, float]:
    """The row of `count` requests at once to this server, which must answer one more afterwards."""
    start = time.perf_counter()
    with SERVERS[name]() as (url, path):
        ends = asyncio.run(all_of(name, url, path, count))
        alive = requesting.post(url, body_of(name, count), path)[0] == 200
    lost = sum(number for what, number in ends.items() if "LOST" in what or "ANSWERED" in what)
    words = ", ".join(f"{number} {what}" for what, number in ends.most_common(6)) + ("" if alive else "; SERVER GONE")
    return f"requests to the {name} server", count, words, lost + (not alive), time.perf_counter() - start
