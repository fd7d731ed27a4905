"""Processes that write a cache and are killed, and processes that write it together."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sqlite3
import time
from contextlib import closing, suppress

import pytest

from tests.tools.simulating import content, key_of, write_shared, write_until_killed
from verl_ext.tools.simulator import ResultCache

KILLS = 12


@pytest.fixture(scope="module")
def processes():
    """Processes of a clean parent, which has loaded what they need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.tools.simulating"])
    return context


def drain(reports):
    """What is left to be read after the writing process has gone."""
    with suppress(EOFError):
        while True:
            yield reports.recv()


def check(path, reported):
    """The file is whole, and so is every result that was reported as stored."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        stored = dict(connection.execute("SELECT key, result FROM results"))
        counted = connection.execute("SELECT count(*), sum(bytes) FROM results").fetchone()
        assert connection.execute("SELECT rows, bytes FROM size").fetchone() == counted
    for seed, number in reported:
        assert stored[key_of([seed, number]).digest] == content(seed, number)
    for key, result in stored.items():
        said = json.loads(result)
        assert key == key_of([said["seed"], said["number"]]).digest and result == content(said["seed"], said["number"])
    return len(stored)


def test_what_was_reported_as_stored_survives_a_kill(tmp_path, processes):
    """Processes, each killed while it writes or while it makes or opens the file."""
    path, rng, reported, in_writing = tmp_path / "c.db", random.Random(0), [], 0
    for seed in range(KILLS):
        reader, writer = processes.Pipe(duplex=False)
        process = processes.Process(target=write_until_killed, args=(str(path), seed, writer))
        process.start()
        writer.close()
        for _ in range(rng.choice((0, 1, 5, 20))):
            reported.append(reader.recv())
        time.sleep(rng.random() * (0.01 if reported and reported[-1][0] == seed else 0.15))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        reported += drain(reader)
        in_writing += bool(reported) and reported[-1][0] == seed
        opened = ResultCache(path)  # opens, and is not emptied
        assert opened.info()["results"] >= len(reported)
        opened.close()
        assert check(path, reported) <= len(reported) + seed + 1  # at most one each that could not be reported
    assert in_writing > KILLS / 2 and len(reported) > 5 * KILLS


def test_two_processes_write_at_once_and_both_give_what_was_stored_first(tmp_path, processes):
    path, count = str(tmp_path / "c.db"), 120
    pipes = [processes.Pipe(duplex=False) for _ in range(2)]
    together = processes.Barrier(2)
    writers = [
        processes.Process(target=write_shared, args=(path, seed, count, pipes[seed][1], together)) for seed in range(2)
    ]
    for writer in writers:
        writer.start()
    results = [reader.recv() for reader, _ in pipes]
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert results[0] == results[1]  # of the keys that both have
    first = {number: 0 if result == content(0, number) else 1 for number, result in results[0].items()}
    assert set(first.values()) == {0, 1}
    connection = sqlite3.connect(path)
    found = dict(connection.execute("SELECT key, result FROM results"))
    models = dict(connection.execute("SELECT key, model FROM results"))
    hits = connection.execute("SELECT sum(hits) FROM results").fetchone()[0]
    connection.close()
    assert len(found) == 3 * count and hits == 2 * count
    for number, seed in first.items():
        assert found[key_of(number).digest] == content(seed, number)
        assert models[key_of(number).digest] == f"model{seed}"
        for own in range(2):
            assert found[key_of([own, number]).digest] == content(own, number)
