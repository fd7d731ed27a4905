"""(u) A request to the gateway over `ctx.chat`, with an engine that answers at once; and the memory of a session.

    python -m tests.bench.gateway

Each session is a blocking program in a thread of its own that asks one thing after the other over one connection; the
clients share the process, and their time counts. `quiet` is the pause for which an answer is held back
(`mas.gateway.quiet`): it is counted from the request, so an engine that takes longer hides it.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil

from verl_ext.gateway import GatewaySection, GatewayWorkflow
from verl_ext.gateway.server import close_here
from verl_ext.mas import Agent, Task, Workflow
from verl_ext.mas.forest import Forest
from verl_ext.mas.limits import Limits
from verl_ext.mas.llm import TokenLLM
from verl_ext.mas.types import Generation
from verl_ext.reports import machine
from verl_ext.sampling import run_once

REQUESTS, SESSIONS, OPEN = 4096, (1, 32, 256), 1000
TEXT = "A request of some forty tokens, which is the length of a short question with a system's prompt before it. "


class Stub(TokenLLM):
    """Answers after `seconds`; a token is a byte."""

    end_token = 0

    def __init__(self, seconds: float = 0.0):
        self.seconds = seconds

    def encode(self, messages: list[dict[str, str]]) -> list[int]:
        """See `LLM`."""
        return list(messages[-1]["content"].encode())

    def encode_text(self, text: str) -> list[int]:
        """See `LLM`."""
        return list(text.encode())

    def decode(self, token_ids: list[int]) -> str:
        """See `LLM`."""
        return bytes(token_ids).decode()

    async def generate(self, prompt_ids: list[int], sampling: dict[str, Any], key: tuple[str, ...]) -> Generation:
        """See `TokenLLM`."""
        await asyncio.sleep(self.seconds)
        return Generation(list(b"an answer of a few words"), [-0.5] * 24)


class Direct(Workflow):
    """Asks by `ctx.chat`."""

    agents = {"solver": Agent()}

    def __init__(self, requests: int):
        self.requests = requests

    async def run(self, task: Task, ctx: Any) -> None:
        """See `Workflow`."""
        for number in range(self.requests):
            await ctx.chat("solver", [{"role": "user", "content": f"{TEXT}{number}"}])

    def reward(self, task: Task, result: Any) -> tuple[float, dict[str, float]]:
        """See `Workflow`."""
        return 0.0, {}


class Asking(GatewayWorkflow):
    """Asks the same by HTTP, then waits in `hold`, where the memory is measured."""

    agents = {"solver": Agent()}

    def __init__(self, requests: int, quiet: float, hold: Callable[[], None] = lambda: None):
        self.requests, self.hold = requests, hold
        self.gateway = GatewaySection(quiet=quiet)

    def program(self, task: Task, endpoint: Any) -> None:
        """See `GatewayWorkflow`."""
        connection = http.client.HTTPConnection(endpoint.url.removeprefix("http://"))
        headers = {"Authorization": f"Bearer {endpoint.api_key}", "Content-Type": "application/json"}
        for number in range(self.requests):
            messages = [{"role": "user", "content": f"{TEXT}{number}"}]
            body = json.dumps({"model": "solver", "messages": messages})
            connection.request("POST", "/v1/chat/completions", body, headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
        self.hold()
        connection.close()

    def reward(self, task: Task, result: Any) -> tuple[float, dict[str, float]]:
        """See `Workflow`."""
        return 0.0, {}


async def _play(workflow: Workflow, sessions: int, llm: Stub) -> None:
    limits = Limits(max_calls=100_000)
    sampling = {"temperature": 1.0, "max_tokens": 64}
    forests = [Forest(Task("q"), workflow, llm, limits=limits, sampling=sampling, name=f"{i}") for i in range(sessions)]
    for trajectory in await asyncio.gather(*[run_once(forest) for forest in forests]):
        assert trajectory.ok, trajectory.error


def seconds(workflow: Workflow, sessions: int, llm: Stub) -> tuple[float, float]:
    """(wall, processor) seconds of all sessions, after a first one that starts the server."""

    async def main() -> tuple[float, float]:
        await _play(workflow, 1, llm)
        start = time.perf_counter(), time.process_time()
        await _play(workflow, sessions, llm)
        try:
            return time.perf_counter() - start[0], time.process_time() - start[1]
        finally:
            await close_here()

    return asyncio.run(main())


def requests() -> list[str]:
    """Milliseconds of a request."""
    lines = [
        "sessions  ctx.chat ms  gateway ms (processor ms)  added ms   quiet 0.02: latency ms   engine of 0.2 s: added"
    ]
    for sessions in SESSIONS:
        each = max(REQUESTS // sessions // (4 if sessions == 1 else 1), 4)
        total = sessions * each
        direct, _ = seconds(Direct(each), sessions, Stub())
        wall, used = seconds(Asking(each, 0.0), sessions, Stub())
        few = 8
        paused, _ = seconds(Asking(few, 0.02), sessions, Stub())
        slow, _ = seconds(Asking(few, 0.02), sessions, Stub(0.2))
        base, _ = seconds(Direct(few), sessions, Stub(0.2))
        lines.append(
            f"{sessions:>8}  {1000 * direct / total:11.3f}  {1000 * wall / total:10.3f} ({1000 * used / total:.3f})"
            f"  {1000 * (wall - direct) / total:14.3f}  {1000 * paused / few:24.1f}  {1000 * (slow - base) / few:24.1f}"
        )
    return lines


def memory() -> list[str]:
    """Resident memory of open sessions, each with its program's thread and one answered request."""
    release, waiting = threading.Event(), threading.Semaphore(0)

    def hold() -> None:
        waiting.release()
        release.wait()

    async def main() -> tuple[int, int]:
        process = psutil.Process()
        await _play(Asking(1, 0.0), 1, Stub())
        before = process.memory_info().rss
        running = asyncio.ensure_future(_play(Asking(1, 0.0, hold), OPEN, Stub()))
        await asyncio.to_thread(lambda: [waiting.acquire() for _ in range(OPEN)])
        after = process.memory_info().rss
        release.set()
        await running
        await close_here()
        return before, after

    before, after = asyncio.run(main())
    return [f"{OPEN:,} sessions at once: {(after - before) / OPEN / 1024:.0f} KiB each"]


def run() -> list[str]:
    """All measurements."""
    return [*requests(), *memory()]


if __name__ == "__main__":
    print(machine())
    print("\n".join(run()))
