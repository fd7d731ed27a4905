"""When a program has asked all that it asks at once; on a loop whose clock jumps, so that no machine is too slow."""

from __future__ import annotations

import asyncio

from tests.helpers import now, run
from verl_ext.gateway.pace import NAPS, PATIENCE, Pace


def test_a_pause_is_counted_from_the_last_request():
    async def work():
        pace, quiet = Pace(0.02), []
        pace.begin(lambda: True, lambda: quiet.append(now()), lambda change: None)
        pace.asked()
        await asyncio.sleep(0.015)
        assert not pace.quiet
        pace.asked()
        while not pace.quiet:
            await pace.change()
        pace.end()
        return quiet

    (at,) = run(work())
    assert 0.035 <= at <= 0.041


def test_a_standing_machine_counts_nothing():
    """Naps are counted, not seconds: a loop that stood still for a minute has slept one nap."""

    async def work():
        pace = Pace(0.02)
        pace.begin(lambda: True, lambda: None, lambda change: None)
        pace.asked()
        asyncio.get_running_loop()._clock.now += 60
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not pace.quiet
        while not pace.quiet:
            await pace.change()
        pace.end()

    run(work())


def test_a_program_is_busy_until_it_waits_and_is_quiet():
    """The count decides when a wave of calls may go to the engine (`mas.deterministic`)."""
    changes, waits = [], [False]

    async def work():
        pace = Pace(0.02)
        pace.begin(lambda: waits[0], lambda: None, changes.append)
        assert sum(changes) == 1
        waits[0] = True
        pace.asked()
        await asyncio.sleep(0.01)
        assert sum(changes) == 1, "it may ask more"
        await asyncio.sleep(0.02)
        assert sum(changes) == 0
        waits[0] = False
        pace.news()
        assert sum(changes) == 1, "it has been given an answer"
        pace.end()
        assert sum(changes) == 0

    run(work())


def test_patience_ends():
    async def work():
        pace = Pace(0.02)
        pace.begin(lambda: True, lambda: None, lambda change: None)
        pace.asked()
        while not pace.patient_no_more:
            await pace.change()
        pace.end()
        return now()

    assert abs(run(work()) - 0.02 * PATIENCE) < 0.02 * NAPS
