"""(l) Hits per second of the tool simulator's cache, over a plain sqlite3 look-up, in process and through the server.

Generated data: 20,000 recorded calls of one tool with eight parameters (two to four arguments each), results of about
700 bytes; 20,000 calls at random, all of them hits, from files that are in the page cache. Not timed: making the file.

The plain look-up is handed the row's number and gives its text: no key is computed and nothing is parsed. In process a
hit is a call of the back end: key, look-up, JSON to a value; in record mode each use is written down, too (by another
thread, whose time counts). The server's clients each have a connection and make one call after the other.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from verl_ext.tools.catalogue import ToolSpec, load_catalogue
from verl_ext.tools.chat import ChatEndpoint
from verl_ext.tools.simulator import HttpSimulator, ResultCache, Simulator
from verl_ext.tools.simulator.cache import ADD
from verl_ext.tools.simulator.keys import call_key

CALLS, ASKED, CLIENTS, PER_CLIENT, STORED = 20_000, 20_000, 32, 100, 500
NAME, NEW = "GET /search/movie", ToolSpec("new", "")
PARAMETERS = ("query", "page", "language", "region", "year", "include_adult", "primary_release_year", "sort_by")


def document() -> dict[str, Any]:
    """An OpenAPI document of one tool."""
    parameters = [
        {"name": name, "in": "query", "description": f"The {name} of films.", "schema": {"type": "string"}}
        for name in PARAMETERS
    ]
    operation = {"summary": "Search for movies.", "parameters": parameters, "responses": {}}
    return {"openapi": "3.0.0", "info": {}, "paths": {"/search/movie": {"get": operation}}}


def arguments(rng: random.Random, number: int) -> dict[str, str]:
    """Arguments of a call; `number` makes it unlike the others."""
    chosen = rng.sample(PARAMETERS[1:], rng.randint(1, 3))
    return {"query": f"film {number}"} | {name: f"{name} {rng.randint(0, 99)}" for name in chosen}


def result(number: int) -> dict[str, Any]:
    """A page of five films."""
    films = [{"id": number * 5 + i, "title": f"Film {number}", "overview": "w" * 60, "vote": 7.5} for i in range(5)]
    return {"page": 1, "results": films, "total_pages": 1}


def record(path: Path, spec: ToolSpec, calls: list[dict[str, str]]) -> None:
    """Fill a cache; not through `store`, which syncs each."""
    ResultCache(path).close()
    keys = [call_key(spec, call) for call in calls]
    texts = [json.dumps(result(number)) for number in range(len(calls))]
    connection = sqlite3.connect(path)
    with connection:
        connection.executemany(
            ADD,
            [
                (key.digest, key.tool, key.version, key.arguments, text, "m", 0.0, 0.0, len(text))
                for key, text in zip(keys, texts, strict=True)
            ],
        )
    connection.close()


def per_second(one: Callable[[int], object], order: list[int], repeats: int = 3) -> float:
    """Of CPU time, best of `repeats`; what `one` returns is not kept."""
    spent = []
    for _ in range(repeats):
        start = time.process_time()
        for row in order:
            one(row)
        spent.append(time.process_time() - start)
    return len(order) / min(spent)


def plain(path: Path, order: list[int]) -> float:
    """Look-ups by rowid."""
    connection = sqlite3.connect(path)
    find = "SELECT result FROM results WHERE rowid = ?"
    speed = per_second(lambda row: connection.execute(find, (row + 1,)).fetchone(), order)
    connection.close()
    return speed


def in_process(path: Path, spec: ToolSpec, calls: list[dict[str, str]], order: list[int]) -> list[tuple[str, float]]:
    """(what, per second) of the parts of a hit, and of all of it."""
    cache = ResultCache(path, writable=False)
    replay = Simulator(mode="replay", cache=cache)
    record = Simulator(mode="record", cache=ResultCache(path), chat=ChatEndpoint("http://127.0.0.1:1/v1"))
    keys = [call_key(spec, call) for call in calls]
    texts = [json.dumps(result(number)) for number in range(CALLS)]

    async def hits(simulator: Simulator) -> float:
        spent = []
        for _ in range(3):
            start = time.process_time()
            for row in order:
                await simulator(spec, calls[row])
            spent.append(time.process_time() - start)
        assert await simulator(spec, calls[7]) == result(7) and simulator.counters.misses == 0
        await simulator.close()
        return len(order) / min(spent)

    return [
        ("  key of a call", per_second(lambda row: call_key(spec, calls[row]), order)),
        ("  look-up by key", per_second(lambda row: cache.find(keys[row]), order)),
        ("  JSON to a value", per_second(lambda row: json.loads(texts[row]), order)),
        ("hits, replay", asyncio.run(hits(replay))),
        ("hits, record", asyncio.run(hits(record))),
    ]


def through_server(folder: Path, path: Path, spec: ToolSpec, calls: list[dict[str, str]]) -> tuple[float, float]:
    """(hits per second of the server's CPU time, by the clock), 32 clients."""
    command = [sys.executable, "-m", "verl_ext.tools.simulator_server", "--catalogue", f"openapi:{folder}/films.json"]
    command += ["--mode", "replay", "--cache", str(path), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        process.stdout.readline()
        url = re.search(r"url=(\S+)", process.stdout.readline())[1]

        async def client(first: int) -> list[Any]:
            asks = HttpSimulator(url)
            found = [await asks(spec, call) for call in calls[first : first + PER_CLIENT]]
            await asks.close()
            return found

        async def clients() -> list[list[Any]]:
            return await asyncio.gather(*(client(number * PER_CLIENT) for number in range(CLIENTS)))

        before, start = sum(psutil.Process(process.pid).cpu_times()[:2]), time.perf_counter()
        found = asyncio.run(clients())
        seconds = time.perf_counter() - start
        spent = sum(psutil.Process(process.pid).cpu_times()[:2]) - before
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert found[3][:5] == [result(3 * PER_CLIENT + i) for i in range(5)]
    return CLIENTS * PER_CLIENT / spent, CLIENTS * PER_CLIENT / seconds


def stores(path: Path) -> tuple[float, float]:
    """(results stored per second by the clock, of a plain INSERT with the same sync), one after the other."""
    cache, text = ResultCache(path), json.dumps(result(1))
    keys = [call_key(NEW, {"number": number}) for number in range(STORED)]
    start = time.perf_counter()
    for key in keys:
        cache.store(key, text, "m").result()
    ours = time.perf_counter() - start
    cache.close()
    bare = sqlite3.connect(path.with_name("bare.db"), isolation_level=None)
    for statement in (
        "PRAGMA journal_mode = WAL",
        "PRAGMA synchronous = FULL",
        "CREATE TABLE t (k BLOB PRIMARY KEY, v)",
    ):
        bare.execute(statement)
    start = time.perf_counter()
    for key in keys:
        bare.execute("INSERT INTO t VALUES (?, ?)", (key.digest, text))
    other = time.perf_counter() - start
    bare.close()
    return STORED / ours, STORED / other


def run() -> list[str]:
    """Lines, one per measurement."""
    rng = random.Random(0)
    calls = [arguments(rng, number) for number in range(CALLS)]
    order = [rng.randrange(CALLS) for _ in range(ASKED)]
    with tempfile.TemporaryDirectory() as name:
        folder, path = Path(name), Path(name) / "cache.db"
        (folder / "films.json").write_text(json.dumps(document()))
        spec = load_catalogue([{"kind": "openapi", "path": str(folder / "films.json")}])[NAME]
        record(path, spec, calls)
        other = plain(path, order)
        lines = [_line("plain sqlite3 look-up", other, other, f"{path.stat().st_size / 2**20:.0f} MiB")]
        lines += [_line(what, speed, other) for what, speed in in_process(path, spec, calls, order)]
        served, clock = through_server(folder, path, spec, calls)
        lines.append(_line(f"server, {CLIENTS} clients", served, other, f"{clock:,.0f}/s by the clock"))
        ours, bare = stores(path)
    return [
        *lines,
        f"  {'stores, synced':<22} {ours:>9,.0f}/s  {ours / bare:>5.2f} x  (plain INSERT {bare:,.0f}/s, by the clock)",
    ]


def _line(name: str, ours: float, other: float, note: str = "") -> str:
    return f"  {name:<22} {ours:>9,.0f}/s  {ours / other:>5.2f} x{f'  ({note})' if note else ''}"


if __name__ == "__main__":
    print("\n".join(run()))
