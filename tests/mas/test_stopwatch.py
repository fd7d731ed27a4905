"""Limits by a clock that stands still while the weights are updated."""

import asyncio

import pytest

from tests.helpers import FakeLLM, Script, chain, forest_of, now, run, walk
from verl_ext.mas import Status
from verl_ext.mas.stopwatch import Stopwatch


async def pausing(clock, start, seconds):
    await asyncio.sleep(start)
    clock.stop()
    clock.stop()
    await asyncio.sleep(seconds)
    clock.start()
    clock.start()


def timed(work_seconds, limit, pauses):
    """Result of `wait_for`, and when it came."""

    async def scenario():
        clock = Stopwatch()
        others = [asyncio.ensure_future(pausing(clock, *pause)) for pause in pauses]
        try:
            result = await clock.wait_for(asyncio.sleep(work_seconds, "done"), limit)
        except asyncio.TimeoutError:
            result = "timeout"
        at = now()
        await asyncio.gather(*others)
        return result, at, clock.now()

    return run(scenario())


@pytest.mark.parametrize(
    ("work", "limit", "pauses", "result", "at"),
    [
        (5, 10, [], "done", 5),
        (15, 10, [], "timeout", 10),
        (15, None, [(1, 100)], "done", 15),
        (15, 10, [(2, 7)], "done", 15),  # 8 s without the pause
        (25, 10, [(2, 7)], "timeout", 17),
        (25, 10, [(2, 7), (12, 5)], "timeout", 22),
        (15, 10, [(9.999, 3)], "timeout", 13),
        (30, 10, [(0, 40)], "done", 30),  # it ends during the pause
    ],
)
def test_pauses_do_not_count(work, limit, pauses, result, at):
    given, when, clock = timed(work, limit, pauses)
    assert (given, when) == (result, pytest.approx(at))
    last = max([when, *(start + length for start, length in pauses)])
    assert clock == pytest.approx(last - sum(length for _, length in pauses))


async def test_a_failure_and_a_cancellation_pass_through():
    clock = Stopwatch()

    async def fails():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await clock.wait_for(fails(), 1)
    inner = asyncio.ensure_future(asyncio.sleep(100))
    outer = asyncio.ensure_future(clock.wait_for(inner, 50))
    await asyncio.sleep(1)
    outer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await outer
    await asyncio.sleep(0)
    assert inner.cancelled() and now() == 1


@pytest.mark.parametrize("paused", [True, False])
async def test_a_weight_update_does_not_time_calls_out(paused):
    forest = forest_of(Script(chain), FakeLLM(delay=lambda request: 20), limits={"call_timeout": 15})
    pause = asyncio.ensure_future(pausing(forest.clock, 10, 700 if paused else 0))
    forest.llm.delay = lambda request: 712 if paused and request.agent == "a" else 14
    trajectory = await walk(forest)
    await pause
    assert trajectory.status is Status.OK
    assert [call.seconds for call in trajectory.calls] == [12 if paused else 14, 14, 14]
