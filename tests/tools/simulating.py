"""What the tests of the simulator share: tools, calls, and processes that write a cache until they are killed."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from types import SimpleNamespace
from typing import Any

from tests.serving import answer
from verl_ext.tools.catalogue import ToolSpec
from verl_ext.tools.chat import ChatEndpoint
from verl_ext.tools.simulator import HttpSimulator, ResultCache, Simulator
from verl_ext.tools.simulator.keys import CallKey, call_key

MOVIE = ToolSpec(
    "GET /search/movie",
    "Search for movies by title.",
    {
        "type": "object",
        "properties": {"query": {"type": "string"}, "page": {"type": "integer", "minimum": 1}},
        "required": ["query"],
    },
    returns={"type": "object", "properties": {"results": {"type": "array"}}},
    source="openapi",
    extra={"method": "GET", "path": "/search/movie"},
)


def key_of(name: Any, version: str = "v1") -> CallKey:
    return call_key(SimpleNamespace(name="tool", version=version), {"name": name})


def content(seed: int, number: int) -> str:
    """The result that process `seed` stores as its `number`-th: from a few bytes to several pages of the file."""
    return json.dumps({"seed": seed, "number": number, "text": "é" * (number % 7) ** 5})


def simulate(server: Any, path: Any = None, **options: Any) -> Simulator:
    """A simulator on the chat server and a cache of that path."""
    chat = {name: options.pop(name) for name in ("retries", "timeout", "concurrency") if name in options}
    cache = None if path is None else ResultCache(path, writable=options.get("mode", "record") == "record")
    endpoint = None if server is None else ChatEndpoint(server.url, **{"retries": 0, "timeout": 10.0, **chat})
    return Simulator(cache=cache, chat=endpoint, **options)


def play(simulator: Simulator, *calls: Any, at_once: bool = False) -> list[Any]:
    """Results of calls of MOVIE, one after the other; exceptions in their places. Closes the simulator."""

    async def scenario() -> list[Any]:
        try:
            if at_once:
                return await asyncio.gather(*[simulator(MOVIE, call) for call in calls], return_exceptions=True)
            return [(await asyncio.gather(simulator(MOVIE, call), return_exceptions=True))[0] for call in calls]
        finally:
            await simulator.close()

    return asyncio.run(scenario())


def rows(path: Any, columns: str = "*") -> list[Any]:
    """The table as another program sees it."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(f"SELECT {columns} FROM results ORDER BY rowid").fetchall()
    finally:
        connection.close()


def put(opened: ResultCache, name: Any, result: str = '{"a": 1}', model: str = "m") -> str:
    """Store and wait for it."""
    return opened.store(key_of(name), result, model).result()


def fill(path: Any, names: Any, **options: Any) -> None:
    """Make a cache with a result for each name."""
    opened = ResultCache(path, **options)
    for name in names:
        put(opened, name, json.dumps({"of": name}))
    opened.close()


def counted(simulator: Any) -> dict[str, int]:
    """The counters that are not 0."""
    return {name: count for name, count in simulator.counters.as_dict().items() if count}


def numbered(body: dict[str, Any], number: int) -> dict[str, Any]:
    """A chat server's behaviour: another result for every request."""
    return answer(json.dumps({"request": number}))


def ask(url: str, spec: ToolSpec, *calls: Any, **options: Any) -> tuple[list[Any], HttpSimulator]:
    """Results of calls of a server, all at once, exceptions in their places; and the client."""

    async def scenario() -> tuple[list[Any], HttpSimulator]:
        client = HttpSimulator(url, **options)
        try:
            return await asyncio.gather(*[client(spec, call) for call in calls], return_exceptions=True), client
        finally:
            await client.close()

    return asyncio.run(scenario())


def write_until_killed(path: str, seed: int, reports: Any) -> None:
    """Store results for ever, and report each when it is stored."""
    cache = ResultCache(path)
    number = 0
    while True:
        cache.store(key_of([seed, number]), content(seed, number), "model").result()
        reports.send((seed, number))
        number += 1


def write_shared(path: str, seed: int, count: int, reports: Any, together: Any) -> None:
    """Store `count` results under keys that all processes use, and as many under keys of its own.

    The second process goes through the shared keys from their end. After a tenth they wait for each other, so that each
    is the first one somewhere however the machine shares out its time.
    """
    cache = ResultCache(path)
    stored = {}
    for place, number in enumerate(range(count) if seed == 0 else reversed(range(count))):
        if place == count // 10:
            together.wait(60)
        stored[number] = cache.store(key_of(number), content(seed, number), f"model{seed}").result()
        cache.store(key_of([seed, number]), content(seed, number), f"model{seed}").result()
        cache.find(key_of(number))
    cache.close()
    reports.send(stored)


def read_as_nobody(path: str, reports: Any) -> None:
    """Look up `key_of(0)` as a user who can write nothing."""
    os.setuid(65534)
    try:
        cache = ResultCache(path, writable=False)
        reports.send((os.access(os.path.dirname(path), os.W_OK), cache.find(key_of(0))))
    except Exception as error:
        reports.send(repr(error))
