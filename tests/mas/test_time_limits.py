"""Time limits: of trajectories, of calls that nobody waits for any longer, and of tools that are plain functions."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.helpers import FakeLLM, VirtualLoop, chain, forest_of, fork, now, run, walk
from verl_ext.mas import Status
from verl_ext.mas.types import CallFailed, CallId, ToolFailed
from verl_ext.sampling import make_strategy
from verl_ext.tools.threads import Threads
from verl_ext.trainer.build import build


class CountingLLM(FakeLLM):
    """Counts what ends by itself and what is cancelled."""

    done = cancelled = 0

    async def generate(self, prompt_ids, sampling, key):
        try:
            generation = await super().generate(prompt_ids, sampling, key)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.done += 1
        return generation


def test_a_trajectory_ends_at_its_deadline_and_its_call_in_the_engine():
    llm = CountingLLM(delay=lambda request: 40.0)
    trajectory = run(walk(forest_of(chain, llm, limits={"trajectory_timeout": 100})))
    assert trajectory.status is Status.TIMEOUT and len(trajectory.calls) == 2
    assert "no result within mas.limits.trajectory_timeout=100 s, after 2 calls" in trajectory.error
    assert (llm.done, llm.cancelled) == (2, 1)


def test_a_call_for_which_another_trajectory_waits_goes_on():
    async def scenario():
        llm = CountingLLM(delay=lambda request: 40.0)
        forest = forest_of(chain, llm, limits={"trajectory_timeout": 60})
        first = asyncio.ensure_future(walk(forest))
        await asyncio.sleep(30)
        forest.limits = type(forest.limits)(trajectory_timeout=100)
        later = await walk(forest)  # in the same stream: it replays, and waits for, the calls of the first
        return (await first).status, later.status, len(later.calls), llm.cancelled

    # The first gives up at 60 s. The second waits for the same call until it ends at 80 s, and for the next one.
    assert run(scenario()) == (Status.TIMEOUT, Status.OK, 3, 0)


def test_a_fork_meets_the_abandoned_call_as_one_that_timed_out():
    async def both(task, ctx):
        async def slow(child):
            try:
                await child.call("b")
            except CallFailed as error:
                return error.status

        return (await asyncio.gather(ctx.branch("x", slow), ctx.call("a")))[0]

    async def scenario():
        llm = CountingLLM(delay=lambda request: 10.0 if request.agent == "a" else 500.0)
        forest = forest_of(both, llm, limits={"trajectory_timeout": 60})
        base = await walk(forest)
        again = await fork(forest, base, CallId((), "a", 0))
        return base.status, again.result, llm.cancelled

    assert run(scenario()) == (Status.TIMEOUT, Status.TIMEOUT, 1)


@pytest.mark.parametrize(("asks", "faster"), [("a", False), ("a", True), ("tool", False), ("tool", True)])
def test_a_fork_asks_anew_what_the_workflow_gave_up_itself(asks, faster):
    """One whose next prompt is another then, as the answer came in time, has diverged."""
    asked = []

    def seconds(request=None):
        if request is None or request.agent == "a":
            asked.append(now())
            return 1.0 if faster and len(asked) > 1 else 9.0
        return 0.0

    async def slow_tool():
        await asyncio.sleep(seconds())

    async def impatient(task, ctx):
        try:
            said = await asyncio.wait_for(ctx.tool("slow") if asks == "tool" else ctx.call("a"), 5)
        except asyncio.TimeoutError:
            said = "late"
        return await ctx.call("b", said=said)

    async def scenario():
        forest = forest_of(impatient, FakeLLM(lambda r: f"{r.key}", seconds), tools={"slow": slow_tool})
        base = await walk(forest)
        forks = await asyncio.gather(*[fork(forest, base, CallId((), "b", 0), name) for name in "xy"])
        await forest.close()
        return base.status, *[again.status for again in forks]

    expected = Status.DIVERGED if faster else Status.OK
    assert run(scenario()) == (Status.OK, expected, expected) and asked == [0, 5]


@pytest.mark.parametrize("strategy", ["fof", "is"])
def test_a_workflow_that_ignores_its_cancellation_holds_nothing_up(strategy):
    async def stubborn(task, ctx):
        await ctx.call("a")
        while True:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                pass

    async def scenario():
        forest = forest_of(stubborn, limits={"trajectory_timeout": 60})
        await make_strategy(strategy, 2, ["a"]).sample(forest)
        return {trajectory.status for trajectory in forest.trajectories}, now()

    statuses, ended = VirtualLoop().run_until_complete(scenario())  # leaves tasks that nothing ends
    assert statuses == {Status.TIMEOUT} and ended < 1000


def test_a_plain_function_may_block_and_its_time_limit_holds():
    free, seen = threading.Event(), []

    def blocking(text: str) -> str:
        free.wait(60)
        return text

    async def ask(task, ctx):
        try:
            return await ctx.tool("search", text="x")
        except ToolFailed as error:
            seen.append(str(error))
            return await ctx.call("a")

    async def scenario():
        forest = forest_of(ask, tools={"search": blocking}, limits={"tool_timeout": 0.05, "tool_retries": 1})
        late = await walk(forest)
        left = forest.threads.left_behind
        free.set()
        forest = forest_of(ask, tools={"search": blocking}, threads=forest.threads)
        quick = await walk(forest)
        while forest.threads.left_behind:
            await asyncio.sleep(0.01)
        return late, left, quick

    late, left, quick = asyncio.run(scenario())
    assert late.ok and late.result == "1" and quick.result == "x"
    assert left == 2 and "no answer in time; 2 of 64 threads still run such calls" in seen[0]


def test_no_more_threads_than_the_limit():
    free, running = threading.Event(), []

    def blocking() -> None:
        running.append(None)
        free.wait(60)

    async def scenario():
        threads = Threads(limit=2)
        calls = [asyncio.ensure_future(threads.run(blocking)) for _ in range(5)]
        while len(running) < 2:
            await asyncio.sleep(0.01)
        calls[0].cancel()  # its thread keeps its place
        await asyncio.sleep(0.05)
        most = len(running)
        free.set()
        await asyncio.gather(*calls, return_exceptions=True)
        return most

    assert asyncio.run(scenario()) == 2 and len(running) == 5


def test_a_thread_that_cannot_start_gives_its_place_back(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    async def scenario():
        threads = Threads(limit=1)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start)
            for _ in range(3):
                with pytest.raises(RuntimeError, match="can't start new thread"):
                    await asyncio.wait_for(threads.run(lambda: None), 10)
        return await asyncio.wait_for(threads.run(lambda: "done"), 10)

    assert asyncio.run(scenario()) == "done"


def test_the_time_that_a_call_waits_for_a_thread_does_not_count():
    async def scenario():
        threads = Threads(limit=1)
        first = asyncio.ensure_future(threads.run(lambda: free.wait(300)))
        waiting = [asyncio.ensure_future(threads.run(lambda: None, limit)) for _ in range(3)]
        await asyncio.sleep(1.2 * limit)
        free.set()
        return await asyncio.gather(first, *waiting, return_exceptions=True)

    limit, free = 2.0, threading.Event()
    assert asyncio.run(scenario()) == [True, None, None, None]


def shout(text: str) -> str:
    """A tool, as a user writes it."""
    return text.upper()


def test_the_configuration_names_a_function_as_a_tool():
    section = {"_target_": f"{__name__}.shout"}
    with pytest.raises(ValueError, match=r"If the function is the tool itself: \+mas.tools.shout._partial_=true"):
        build(section, "mas.tools.shout")
    tool = build(section | {"_partial_": True}, "mas.tools.shout")
    forest = forest_of(lambda task, ctx: ctx.tool("shout", text="a"), tools={"shout": tool})
    assert asyncio.run(walk(forest)).result == "A"
