"""What begins, or is answered, at once is spread over turns of the event loop."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers import FakeLLM, Script, forest_of
from verl_ext.mas.turns import AT_ONCE, Turns
from verl_ext.sampling import run_once


def test_so_many_pass_in_a_turn_in_their_order_and_the_cancelled_hold_nobody_up():
    async def main():
        turns, passed, turn = Turns(), [], 0

        async def take(name):
            await turns.take()
            passed.append((name, turn))

        tasks = [asyncio.ensure_future(take(name)) for name in range(4 * AT_ONCE)]
        await asyncio.sleep(0)
        assert len(passed) == AT_ONCE
        for task in tasks[AT_ONCE : 2 * AT_ONCE]:
            task.cancel()
        while not all(task.done() for task in tasks):
            turn += 1
            await asyncio.sleep(0)
        first, *rest = [{name for name, at in passed if at == one} for one in sorted({at for _, at in passed})]
        assert all(len(one) <= AT_ONCE for one in (first, *rest)) and len(rest) == 2
        assert [name for name, _ in passed] == [*range(AT_ONCE), *range(2 * AT_ONCE, 4 * AT_ONCE)]
        await asyncio.sleep(0.01)
        start = turn
        await asyncio.gather(*[take(name) for name in range(AT_ONCE)])  # room again, at once
        assert turn == start

    asyncio.run(main())


@pytest.mark.parametrize(("characters", "at_once"), [(100, AT_ONCE), (5_000, AT_ONCE // 2), (100_000, 1)])
async def test_long_prompts_are_made_alone(characters, at_once):
    """Four prompts of 8,000 tokens would hold up the loop for a tenth of a second."""
    turns, made, most = Turns(), 0, 0

    class Counting(FakeLLM):
        def encode(self, messages):
            nonlocal made
            made += 1
            return [1]

    async def ask(task, ctx):
        await ctx.call("a", text="x" * characters)

    forests = [forest_of(Script(ask, "a"), Counting()) for _ in range(5 * AT_ONCE)]
    for forest in forests:
        forest.turns = turns
    running = asyncio.gather(*[run_once(forest) for forest in forests])
    while not running.done():
        before = made
        await asyncio.sleep(0)
        most = max(most, made - before)
    assert made == len(forests) and most == at_once


async def test_answers_that_come_at_once_are_read_in_turns():
    """Otherwise all would be read in the turn in which they come, and those that come meanwhile in the next."""
    turns, answered, read, most = Turns(), asyncio.Event(), 0, 0

    async def ask(task, ctx):
        nonlocal read
        await ctx.call("a")
        read += 1

    class Together(FakeLLM):
        async def generate(self, *request):
            await answered.wait()
            return await super().generate(*request)

    forests = [forest_of(Script(ask, "a"), Together()) for _ in range(10 * AT_ONCE)]
    for forest in forests:
        forest.turns = turns
    running = asyncio.gather(*[run_once(forest) for forest in forests])
    await asyncio.sleep(1.0)
    answered.set()
    while not running.done():
        before = read
        await asyncio.sleep(0)
        most = max(most, read - before)
    assert read == len(forests) and most == AT_ONCE
