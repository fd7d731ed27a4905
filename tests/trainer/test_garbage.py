"""Python's garbage collector in a rollout worker looks at young objects alone, and at few at once."""

from __future__ import annotations

import gc

import pytest

from verl_ext.trainer.rollout.garbage import INTERVAL, THRESHOLDS, collect_between_steps


class Loop:
    """Calls are made by the test."""

    def call_soon_threadsafe(self, work, *arguments):
        self.wanted, self.after = (work, arguments), 0.0

    def call_later(self, after, work, *arguments):
        self.wanted, self.after = (work, arguments), after

    def tick(self):
        work, arguments = self.wanted
        work(*arguments)


@pytest.fixture
def looks():
    """(loop, generation of each look) while the worker's settings are in force."""
    before, loop, generations = gc.get_threshold(), Loop(), []

    def note(phase, info):
        if phase == "start":
            generations.append(info["generation"])

    collect_between_steps(loop)
    gc.callbacks.append(note)
    yield loop, generations
    gc.callbacks.remove(note)
    gc.set_threshold(*before)
    gc.unfreeze()


def test_a_step_looks_at_young_objects_alone(looks):
    _, generations = looks
    kept = [[number] for number in range(150 * THRESHOLDS[0])]  # with Python's own settings, of all generations
    assert len(kept) and len(generations) >= 100 and set(generations) == {0}


def test_young_objects_are_looked_at_although_as_many_go_as_are_made(looks):
    loop, generations = looks
    old = [[number] for number in range(20 * THRESHOLDS[0])]
    loop.tick()
    generations.clear()
    for number in range(len(old)):
        old[number] = [number]
    assert not generations and len(gc.get_objects(0)) > 10 * THRESHOLDS[0]  # Python does not look
    loop.tick()
    assert len(gc.get_objects(0)) < THRESHOLDS[0] and loop.after == INTERVAL
