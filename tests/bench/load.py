"""Sessions and requests under load, with nothing lost. Prints a table; the exit status is 1 if anything is.

    python -m tests.bench.load
    python -m tests.bench.load --questions 200 --requests 200 --queries 512 --programs 100     # a minute

sessions    questions at once, each with three trajectories of a small workflow over an engine and tools that fail,
            delay and hang at random; some questions are cancelled. Each trajectory must have a reward, or a status and
            an error; nothing may be left running: calls, tools, threads, tasks.
burst       searches at once, from many rollout workers, of a server process that finds 125 queries per second: each
            must be answered under the default limits.
requests    (load_requests.py) requests at once to each HTTP server, a part of them half-sent, slow or dropped: each of
            the others must be answered, or refused with a reason and the advice to come again; the server lives.
programs    in the sandbox at once, a part of them cancelled: each of the others must be answered.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

from tests.bench.load_requests import requests
from tests.helpers import FakeLLM, Request, Script, forest_of
from verl_ext.mas import CallFailed
from verl_ext.mas.forest import Cost, Forest
from verl_ext.mas.limits import Limits
from verl_ext.mas.tool_calls import attempt
from verl_ext.mas.types import CallId, Stream, ToolRecord
from verl_ext.sampling.base import fork_all, fork_on
from verl_ext.tools.retrieval import HttpRetriever, SearchTool
from verl_ext.tools.sandbox import RunPython
from verl_ext.tools.threads import Threads

GROUP = 3
LIMITS = {"call_timeout": 10.0, "tool_timeout": 10.0, "trajectory_timeout": 60.0, "tool_retries": 1, "retry_wait": 0.01}
# A server whose index takes 8 ms for each query.
SLOW_SERVER = """
import time
from verl_ext.tools.http.server import listen, serve
from verl_ext.tools.retrieval import Hit, Passage
from verl_ext.tools.retrieval_server import create_app

class Slow:
    backend = "slow"
    def __len__(self):
        return 1
    def search(self, queries, k):
        time.sleep(0.008 * len(queries))
        return [[Hit(Passage(query, "", query), 1.0)] for query in queries]

listener = listen("127.0.0.1", 0)
print(listener.getsockname()[1], flush=True)
serve(create_app(Slow()), listener)
"""
Row = tuple[str, int, str, int, float]


async def team(task: Any, ctx: Any) -> str:
    """Two branches with a tool each, one of which may fail, then a judge."""

    async def side(child: Any, agent: str, tool: str) -> str:
        found = await child.tool(tool, text=task.question)
        return await child.call(agent, said=found)

    parts = [ctx.branch("l", side, "a", "fetch"), ctx.branch("r", side, "b", "compute")]
    said = [part for part in await asyncio.gather(*parts, return_exceptions=True) if not isinstance(part, CallFailed)]
    return await ctx.call("c", said=said)


class Chance:
    """An engine's and two tools' failures, delays and hangs."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def answer(self, request: Request) -> Any:
        """5 % of the calls fail."""
        return RuntimeError("the engine failed") if self.random.random() < 0.05 else "an answer"

    def delay(self, request: Request) -> float:
        """2 % of the calls hang."""
        return 1000.0 if self.random.random() < 0.02 else self.random.random() * 0.2

    async def fetch(self, text: str) -> str:
        """10 % of the attempts fail, 2 % hang."""
        draw = self.random.random()
        await asyncio.sleep(1000.0 if draw < 0.02 else draw * 0.1)
        if draw > 0.9:
            raise OSError("no network")
        return text

    def compute(self, text: str) -> str:
        """A plain function: it runs in a thread. 10 % of the attempts fail."""
        time.sleep(0.001)
        if self.random.random() < 0.1:
            raise ValueError("no result")
        return text


def lost_of(forest: Forest, threads: Threads) -> Counter[str]:
    """What is not accounted for of a question that has ended."""
    lost: Counter[str] = Counter()
    for trajectory in forest.trajectories:
        lost["without an end"] += not (trajectory.scored or trajectory.error)
        lost["call without an end"] += sum(not (c.text or c.error) for c in trajectory.calls)
    lost["calls running"] += forest.busy + len(forest.clock.waits)
    return lost


async def sessions(count: int, seed: int = 0) -> Row:
    """The row of `count` questions at once."""
    chance, threads, start = Chance(seed), Threads(), time.perf_counter()
    llm = FakeLLM(chance.answer, chance.delay)
    tools = {"fetch": chance.fetch, "compute": chance.compute}
    forests = [forest_of(Script(team), llm, limits=LIMITS, tools=tools, threads=threads) for _ in range(count)]
    lost: Counter[str] = Counter()
    ended: Counter[str] = Counter()

    async def question(number: int) -> None:
        forest = forests[number]
        sampling = fork_all(forest, GROUP) if number % 2 else fork_on(forest, "c", GROUP)
        work = asyncio.ensure_future(sampling)
        cancelled = number % 10 == 0
        if cancelled:
            asyncio.get_running_loop().call_later(chance.random.random() * 2, work.cancel)
        await asyncio.wait([work])
        await forest.close()
        if work.cancelled():
            ended["cancelled questions"] += 1
        else:
            done = work.result()
            lost["trajectories"] += len(forest.trajectories) - len(done if number % 2 else done[0])
        lost.update(lost_of(forest, threads))
        ended.update(trajectory.status.value for trajectory in forest.trajectories)

    await asyncio.gather(*(question(number) for number in range(count)))
    await asyncio.sleep(0.5)  # threads deliver their last results
    lost["tasks"] += len(asyncio.all_tasks()) - 1
    lost["threads"] += threads.left_behind + threads.limit - threads._free._value
    lost["threads"] += sum(thread.name == "tool" for thread in threading.enumerate())
    trajectories = sum(len(forest.trajectories) for forest in forests)
    words = ", ".join(f"{number} {what}" for what, number in ended.most_common())
    words += "".join(f"; LOST {number} {what}" for what, number in (+lost).items())
    return f"sessions of {count} questions", trajectories, words, lost.total(), time.perf_counter() - start


async def calls(tools: list[Any], arguments: list[dict[str, Any]], cancelled: int = 0) -> Counter[str]:
    """How calls under the default limits end, dealt to `tools` round robin, all at once; each `cancelled`th is."""
    threads, ends = Threads(), Counter[str]()

    async def call(number: int) -> None:
        record = ToolRecord(CallId((), "tool", number), Stream("0"), "tool", arguments[number])
        await attempt(record, tools[number % len(tools)], Limits(), Cost(), threads)
        ends["answered" if record.failure is None else f"failed: {record.failure:.200}"] += 1

    work = [asyncio.ensure_future(call(number)) for number in range(len(arguments))]
    for task in work[::cancelled] if cancelled else []:
        asyncio.get_running_loop().call_later(random.random() * 5, task.cancel)
    done = await asyncio.gather(*work, return_exceptions=True)
    ends["cancelled"] += sum(isinstance(one, asyncio.CancelledError) for one in done)
    for tool in tools:
        await tool.close()
    return +ends


def row(name: str, count: int, ends: Counter[str], start: float) -> Row:
    """A row of the table; everything that is neither answered nor cancelled by the bench is lost."""
    words = ", ".join(f"{number} {what}" for what, number in ends.most_common(4))
    lost = count - ends["answered"] - ends["cancelled"]
    return name, count, words, lost, time.perf_counter() - start


def burst(count: int, workers: int) -> Row:
    """The row of `count` searches at once, in `workers` search tools, of a slow server process."""
    process = subprocess.Popen([sys.executable, "-c", SLOW_SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url, start = f"http://127.0.0.1:{int(process.stdout.readline())}", time.perf_counter()
        asked = [{"queries": [f"query {number}"]} for number in range(count)]
        ends = asyncio.run(calls([SearchTool(HttpRetriever(url)) for _ in range(workers)], asked))
        return row(f"burst of searches, {workers} workers", count, ends, start)
    finally:
        process.terminate()
        process.wait(30)


def programs(count: int) -> Row:
    """The row of `count` programs at once, a tenth of which is cancelled."""
    start = time.perf_counter()
    asked = [{"program": f"print({number})"} for number in range(count)]
    return row("programs in the sandbox", count, asyncio.run(calls([RunPython()], asked, cancelled=10)), start)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser("python -m tests.bench.load")
    for name, default in (("questions", 2000), ("queries", 8192), ("workers", 64), ("requests", 4000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--programs", type=int, default=2000)
    given = parser.parse_args(argv)
    lost = 0
    print(f"{'what':<36} {'number':>7} {'lost':>5} {'s':>6}   how they ended")
    for make in (
        lambda: asyncio.run(sessions(given.questions)),
        lambda: burst(given.queries, given.workers),
        lambda: programs(given.programs),
        *(lambda name=name: requests(name, given.requests) for name in ("retrieval", "simulator")),
    ):
        name, count, words, missing, seconds = make()
        lost += missing
        print(f"{name:<36} {count:>7} {missing:>5} {seconds:>6.0f}   {words}", flush=True)
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
