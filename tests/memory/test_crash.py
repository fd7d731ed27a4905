"""kill -9 at any moment: what is found afterwards is the state after a step, never anything between."""

import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import time

import pytest

from tests.memory.histories import Halves
from tests.memory.writer import RULES, made_at, states, write, write_until
from verl_ext.memory import MemoryStore
from verl_ext.storage.sqlite import StorageError

# Processes that start at once: a server that has everything imported forks them.
SPAWN = multiprocessing.get_context("forkserver")
SPAWN.set_forkserver_preload(["tests.memory.writer"])


class Expected:
    """The content hash after each step, from the pure functions."""

    def __init__(self):
        self._states, self._hashes = states(), []

    def __getitem__(self, version):
        while len(self._hashes) <= version:
            self._hashes.append(next(self._states).content_hash())
        return self._hashes[version]


class Killer:
    """Starts writers and kills each at a random moment of a random one of its first steps."""

    def __init__(self, folder):
        self.folder, self.rng = folder, random.Random(0)
        self.seconds = 0.02  # that a step takes, as far as it is known

    def run(self):
        """Everything the writer said."""
        receiver, sender = SPAWN.Pipe(duplex=False)
        process = SPAWN.Process(target=write, args=(self.folder, sender), daemon=True)
        process.start()
        sender.close()
        said = [receiver.recv()]
        for _ in range(self.rng.randint(0, 3)):
            said.append(receiver.recv())
            began = time.monotonic()
            said.append(receiver.recv())
            self.seconds += 0.2 * (time.monotonic() - began - self.seconds)
        said.append(receiver.recv())
        time.sleep(self.rng.uniform(0, 1.2 * self.seconds))
        os.kill(process.pid, signal.SIGKILL)
        process.join(30)
        assert process.exitcode == -signal.SIGKILL
        while True:
            try:
                said.append(receiver.recv())
            except EOFError:
                return said


def sound(store, expected):
    """The file is whole and holds the state after a step; which one."""
    assert store._database._connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert store._database.load().content_hash() == store.view().content_hash() == expected[store.version]
    return store.version


def test_a_kill_before_any_statement_of_a_step(tmp_path):
    expected, statement, exits = Expected(), 0, []
    with MemoryStore(tmp_path / "memory", RULES, Halves()) as store:
        for step in range(1, 4):
            store.apply(step, made_at(step, store.view()))
    while not exits or exits[-1] != 0:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(tmp_path / "memory", tmp_path / "copy")
        process = SPAWN.Process(target=write_until, args=(tmp_path / "copy", statement))
        process.start()
        process.join(60)
        exits.append(process.exitcode)
        with MemoryStore(tmp_path / "copy", RULES, Halves()) as store:
            assert sound(store, expected) == (4 if exits[-1] == 0 else 3)
        statement += 1
    assert exits.count(-signal.SIGKILL) == len(exits) - 1 > 10


def test_kills_in_the_middle_of_steps_snapshots_and_restores(tmp_path):
    expected, killer = Expected(), Killer(tmp_path)
    for _ in range(12):
        killer.run()
        with MemoryStore(tmp_path / "memory", RULES, Halves()) as store:
            before = sound(store, expected)
            if (tmp_path / "snapshot" / "memory.sqlite").exists():
                store.restore(tmp_path / "snapshot")
                assert sound(store, expected) % 3 == 0 and store.version <= before
                if killer.rng.random() < 0.5:  # else it would seldom come beyond the next copy
                    for step in range(store.version + 1, before + 1):
                        store.apply(step, made_at(step, store.view()))
                    assert sound(store, expected) == before
    assert store.version > 3
    with MemoryStore(tmp_path / "memory", RULES, Halves()) as store:
        store.snapshot(tmp_path / "snapshot")
    assert [path.name for path in (tmp_path / "snapshot").iterdir()] == ["memory.sqlite"]  # nothing left of killed ones


def test_an_interrupted_transaction_changes_nothing(tmp_path):
    """The disk refuses in the middle: neither file nor view move, and the step can be made again."""
    expected = Expected()
    with MemoryStore(tmp_path, RULES, Halves()) as store:
        for step in (1, 2):
            store.apply(step, made_at(step, store.view()))
        connection = store._database._connection
        connection.execute(
            "CREATE TEMP TRIGGER refuse BEFORE UPDATE ON meta BEGIN SELECT RAISE(FAIL, 'disk full'); END"
        )
        with pytest.raises(StorageError, match="could not be written: disk full"):
            store.apply(3, made_at(3, store.view()))
        assert store.version == 2 and store.view().content_hash() == expected[2]
        assert sqlite3.connect(tmp_path / "memory.sqlite").execute(
            "SELECT value FROM meta WHERE name='step'"
        ).fetchone() == (2,)
        connection.execute("DROP TRIGGER refuse")
        store.apply(3, made_at(3, store.view()))
        assert store.view().content_hash() == expected[3]
