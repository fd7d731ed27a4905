"""Files that are damaged, of something else, locked, or not to be written."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
import tempfile
import threading
from pathlib import Path

import pytest

from tests.tools.simulating import fill, key_of, put, read_as_nobody, rows
from verl_ext.storage import sqlite
from verl_ext.tools import ToolError
from verl_ext.tools.simulator import ResultCache


def damaged(path, kind):
    """Make the file what `kind` says."""
    fill(path, range(300))
    whole = path.read_bytes()
    kinds = {"garbage": os.urandom(5000), "cut": whole[: len(whole) // 2], "no header": bytes(100) + whole[100:]}
    kinds["overwritten"] = whole[:8192] + os.urandom(8192) + whole[16384:]
    path.write_bytes(kinds[kind])
    return kinds[kind]


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize("kind", ["garbage", "cut", "no header", "overwritten"])
def test_a_damaged_file_is_an_error_with_a_remedy_and_stays(kind, writable, tmp_path):
    before = damaged(tmp_path / "c.db", kind)
    with pytest.raises(ValueError, match=r"c\.db is damaged, or no cache .*left as it is. Remedy: restore a copy"):
        ResultCache(tmp_path / "c.db", writable=writable)
    assert (tmp_path / "c.db").read_bytes() == before


def test_damage_met_later_is_the_tools_failure(tmp_path):
    damaged(tmp_path / "c.db", "overwritten")
    opened = ResultCache(tmp_path / "c.db", verify=False)
    with pytest.raises(ToolError, match="is damaged, or no cache .*malformed"):
        for name in range(300):
            opened.find(key_of(name))
    opened.close()


def test_another_programs_database_and_another_format_are_refused(tmp_path):
    foreign = sqlite3.connect(tmp_path / "f.db")
    foreign.execute("CREATE TABLE results (key)")
    foreign.close()
    before = (tmp_path / "f.db").read_bytes()
    for writable in (True, False):
        with pytest.raises(ValueError, match="is a database of something else.*Remedy: another path"):
            ResultCache(tmp_path / "f.db", writable=writable)
    assert (tmp_path / "f.db").read_bytes() == before
    fill(tmp_path / "c.db", [1])
    connection = sqlite3.connect(tmp_path / "c.db")
    connection.execute("PRAGMA user_version = 7")
    connection.close()
    with pytest.raises(ValueError, match="has version 7, this verl_ext reads version 1"):
        ResultCache(tmp_path / "c.db")


def test_files_that_cannot_be(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty.db").touch()
    with pytest.raises(ValueError, match="folder cannot be used .*Remedy: a local disk"):
        ResultCache(tmp_path / "folder")
    with pytest.raises(ValueError, match=r"file/c\.db cannot be used"):
        ResultCache(tmp_path / "file" / "c.db")
    with pytest.raises(ValueError, match="there is no cache at .*none.db. Remedy: record one"):
        ResultCache(tmp_path / "none.db", writable=False)
    with pytest.raises(ValueError, match="empty.db is empty. Remedy: record one"):
        ResultCache(tmp_path / "empty.db", writable=False)
    fill(tmp_path / "empty.db", [1])  # a new file is made of it, in the place of what is no content
    assert len(rows(tmp_path / "empty.db")) == 1


def test_a_lock_that_is_held_too_long_is_the_tools_failure_and_passes(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_S", 0.2)
    opened = ResultCache(tmp_path / "c.db")
    put(opened, "a")
    opened.find(key_of("a"))
    other = sqlite3.connect(tmp_path / "c.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(ToolError, match="cannot be used .database is locked.*no process that holds the file"):
        put(opened, "b")
    assert opened.find(key_of("a")) and opened.find(key_of("b")) is None  # reading goes on
    other.execute("ROLLBACK")
    assert put(opened, "b") == '{"a": 1}'
    opened.close()
    assert rows(tmp_path / "c.db", "hits") == [(2,), (0,)]  # the use before the failure is not lost


def test_a_short_lock_is_waited_for(tmp_path):
    opened = ResultCache(tmp_path / "c.db")
    other = sqlite3.connect(tmp_path / "c.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    stored = opened.store(key_of("a"), "1", "m")
    timer = threading.Timer(0.3, lambda: other.execute("COMMIT"))
    timer.start()
    assert stored.result(20) == "1"
    timer.join()
    opened.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root can")
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("linked", [False, True])
def test_a_user_who_can_write_nothing_reads(linked, killed):
    """Also a cache whose last writer left its WAL, and by a link in a folder of their own."""
    folder, own = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        own.chmod(0o777)
        (own / "c.db").symlink_to(folder / "c.db")
        opened = ResultCache(folder / "c.db")
        put(opened, 0)
        if not killed:
            opened.close()
        parent, child = multiprocessing.Pipe()
        process = multiprocessing.get_context("forkserver").Process(
            target=read_as_nobody, args=(str((own if linked else folder) / "c.db"), child)
        )
        process.start()
        assert parent.poll(60) and parent.recv() == (linked, '{"a": 1}')
        process.join()
        if killed:
            opened.close()
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(own)
