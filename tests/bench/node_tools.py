"""What a search tool costs that the rollout workers of a node share (`once_per_node`), against one in each worker.

    python -m tests.bench.node_tools CORPUS.jsonl 4 true      # workers; once_per_node

Memory is what a process has alone. Rates are of all workers together, 64 searches of each at a time.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import ray

from tests.end_to_end.running import environment, preloaded
from verl_ext.engine import preload

CALLS, AT_ONCE = 1500, 64


class Worker:
    """The search tool of a rollout worker."""

    def __init__(self, corpus: str, once: bool):
        from verl_ext.trainer.rollout.node_tools import tools_of_node

        section = {"_target_": "verl_ext.tools.retrieval.search_tool", "corpus": corpus, "once_per_node": once}
        self.make, self.sections, self.tools = tools_of_node, {"search": section}, dict[str, Any]()
        self.titles = [json.loads(line)["title"] for line in Path(corpus).read_text("utf-8").splitlines()[:CALLS]]

    def memory(self) -> float:
        """MiB of this process alone."""
        return float(psutil.Process().memory_full_info().uss / 2**20)

    def build(self) -> None:
        """Build the tool, or find the node's."""
        self.tools = self.make(self.sections)

    def one_by_one(self) -> float:
        """Median milliseconds of a search."""
        return statistics.median(asyncio.run(search(self.tools["search"], self.titles, 300, 1))) * 1000

    def many(self) -> None:
        """Many searches at a time."""
        asyncio.run(search(self.tools["search"], self.titles, CALLS, AT_ONCE))


async def search(tool: Any, titles: list[str], calls: int, at_once: int) -> list[float]:
    """Seconds of each search. Not a method: Ray runs all methods of a class with a coroutine on an event loop."""
    places = asyncio.Semaphore(at_once)

    async def one(number: int) -> float:
        async with places:
            begun = time.perf_counter()
            await tool(queries=[f"{titles[number % len(titles)]} {os.getpid()}"])
            return time.perf_counter() - begun

    return await asyncio.gather(*map(one, range(calls)))


def hosts() -> float:
    """MiB of the processes that workers of this user share."""
    found = [one for one in psutil.process_iter(["cmdline"]) if "ToolHost" in " ".join(one.info["cmdline"] or [])]
    return float(sum(one.memory_full_info().uss for one in found) / 2**20)


def main(corpus: str, number: str, once: str) -> None:
    """Measure, and print a line."""
    executable = preload.command_of_workers(preload.address_of(preloaded()))
    os.environ |= environment()
    ray.init(address="local", num_cpus=4, include_dashboard=False, runtime_env={"py_executable": executable})
    made: Any = ray.remote(Worker)
    workers = [made.remote(corpus, once == "true") for _ in range(int(number))]

    def ask(method: str) -> list[Any]:
        return ray.get([getattr(worker, method).remote() for worker in workers])

    before, begun = sum(ask("memory")), time.time()
    ask("build")
    start, memory, shared = time.time() - begun, sum(ask("memory")) - before, hosts()
    one, begun = ray.get(workers[0].one_by_one.remote()), time.time()
    ask("many")
    rate = CALLS * len(workers) / (time.time() - begun)
    found = f"{start:.1f} s to start, {memory:.0f} MiB in the workers, {shared:.0f} MiB shared, {one:.1f} ms a search"
    load = os.getloadavg()[0]
    print(f"{number} workers, once_per_node={once}: {found}, {rate:,.0f} searches a second, load {load:.0f}")
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
