"""Readers see the state after one step and nothing of the next, while a writer goes on."""

import threading

import pytest

from tests.memory.histories import AGENTS, QUERIES, Halves, everything
from tests.memory.writer import RULES, made_at, states
from verl_ext.memory import Episode, MemoryStore, Use

ASKED = [(agent, query) for agent in AGENTS for query in QUERIES]
STEPS = 30


def recalled(view):
    """What a rollout could see of a view."""
    return view.recall_many(ASKED, 4)


@pytest.fixture(scope="module")
def expected():
    """By version, from the pure functions."""
    steps = states()
    return [recalled(next(steps)) for _ in range(STEPS + 1)]


def test_what_a_step_inserts_is_seen_from_the_next_version_on(tmp_path):
    with MemoryStore(tmp_path, RULES, Halves()) as store:
        use = Use("math", "a question", (), "an answer")
        store.apply(1, [Episode("q", "0", 1, 1, (use,)), *(Episode("q", str(n), 0, 0) for n in range(1, 5))])
        assert store.view(0).recall("math", "a question", 3) == []
        (memory,) = store.view().recall("math", "a question", 3)
        assert (memory.output, memory.time, memory.score) == ("an answer", 1, 2.0)
        store.apply(2, [])
        assert store.view(1).recall("math", "a question", 3) == [memory]
        assert store.view(2).recall("math", "a question", 3) != [memory]  # older by a step
        for version in (0, 3):
            with pytest.raises(ValueError, match=r"no view of version .* there are \[1, 2\]"):
                store.view(version)


def test_threads_that_read_while_a_thread_writes(tmp_path, expected):
    """Each reader takes a view as a rollout does at its step's start, and asks it again and again."""
    wrong, read, done = [], [0] * 4, threading.Event()

    def reader(number):
        while not done.is_set():
            view = store.view()
            for _ in range(3):
                if recalled(view) != expected[view.version]:
                    wrong.append(view.version)
                read[number] += 1

    with MemoryStore(tmp_path, RULES, Halves()) as store:
        threads = [threading.Thread(target=reader, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            for step in range(1, STEPS + 1):
                store.apply(step, made_at(step, store.view()))
        finally:
            done.set()
            for thread in threads:
                thread.join(30)
    assert not wrong and min(read) > 3


def test_one_process_writes(tmp_path):
    store = MemoryStore(tmp_path, RULES, Halves())
    with pytest.raises(ValueError, match="another process writes the memory in .*choose another folder"):
        MemoryStore(tmp_path, RULES, Halves())
    store.close()
    MemoryStore(tmp_path, RULES, Halves()).close()


def test_threads_that_apply_at_once_do_not_mix(tmp_path):
    """Each step is applied once, by whichever thread comes first; the others are told."""
    refused = []

    def apply_all():
        for step in range(1, 21):
            try:
                store.apply(step, made_at(step, by_step[step - 1]))
            except ValueError:
                refused.append(step)

    steps = states()
    by_step = [next(steps) for _ in range(21)]
    with MemoryStore(tmp_path, RULES, Halves()) as store:
        threads = [threading.Thread(target=apply_all) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert store.version == 20 and len(refused) == 40
        assert everything(store.view()) == everything(by_step[20])
