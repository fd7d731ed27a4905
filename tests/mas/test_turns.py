"""What begins at once is spread over turns of the event loop."""

from __future__ import annotations

import asyncio

from verl_ext.mas.turns import AT_ONCE, Turns


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
