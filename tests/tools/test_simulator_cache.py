"""The cache's file: what is in it, its bounds, and files that are none."""

from __future__ import annotations

import json
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor

from tests.tools.simulating import fill, key_of, put, rows
from verl_ext.tools.simulator import ResultCache, cache
from verl_ext.tools.simulator.cache import ROW_BYTES


def test_what_is_stored_is_found_with_who_made_it_when_and_how_often_it_was_used(tmp_path):
    path, before = tmp_path / "new" / "folder" / "c.db", time.time()
    opened = ResultCache(path)
    assert opened.find(key_of("a")) is None
    assert put(opened, "a", '{"text": "é😀\\u0000"}', "qwen") == '{"text": "é😀\\u0000"}'
    assert [opened.find(key_of("a")) for _ in range(3)] == ['{"text": "é😀\\u0000"}'] * 3
    put(opened, "b")
    assert opened.info() == {
        "results": 2,
        "bytes": 2 * ROW_BYTES + 2 * 12 + len('{"text": "é😀\\u0000"}'.encode()) + 8,
        "evicted": 0,
    }
    opened.close()
    (found, _) = rows(path, "tool, version, arguments, result, model, created, used, hits")
    assert found[:5] == ("tool", "v1", '{"name":"a"}', '{"text": "é😀\\u0000"}', "qwen") and found[7] == 3
    assert before <= found[5] <= found[6] <= time.time()
    again = ResultCache(path)
    assert again.find(key_of("a")) == found[3] and again.find(key_of("a", "v2")) is None
    again.close()


def test_what_is_stored_first_stays(tmp_path):
    opened = ResultCache(tmp_path / "c.db")
    assert put(opened, "a", "1") == "1" and put(opened, "a", "2", "other") == "1"
    opened.close()
    assert rows(tmp_path / "c.db", "result, model") == [("1", "m")]


def test_the_least_recently_used_go_first(tmp_path, capsys):
    opened = ResultCache(tmp_path / "c.db", max_rows=4)
    for name in range(4):
        put(opened, name)
    assert opened.evicted == 0 and not capsys.readouterr().out
    assert opened.find(key_of(0)) and opened.find(key_of(2))
    put(opened, 4)
    assert [bool(opened.find(key_of(name))) for name in range(5)] == [True, False, True, True, True]
    put(opened, 5)  # all were used since, in this order
    put(opened, 6)
    assert [bool(opened.find(key_of(name))) for name in (0, 2, 3, 4, 5, 6)] == [False, False, True, True, True, True]
    assert opened.evicted == 3 and opened.info()["results"] == 4
    opened.close()
    assert capsys.readouterr().out.count("is full (4 results or 1024 MiB)") == 1


def test_the_bound_in_bytes(tmp_path):
    path, text = tmp_path / "c.db", json.dumps("x" * 100_000)
    opened = ResultCache(path, max_mb=1)
    for name in range(30):
        put(opened, name, text)
        assert opened.info()["bytes"] <= 2**20 and opened.find(key_of(name)) == text
    assert opened.info()["results"] == 2**20 // (100_002 + ROW_BYTES + 11) == 10
    opened.close()
    assert [json.loads(found[0])["name"] for found in rows(path, "arguments")] == list(range(20, 30))
    assert path.stat().st_size < 1.5 * 2**20  # what is freed is used again


def test_bounds_that_were_lowered_hold_after_the_next_result(tmp_path):
    fill(tmp_path / "c.db", range(20))
    opened = ResultCache(tmp_path / "c.db", max_rows=3)
    assert opened.info()["results"] == 20
    put(opened, "new")
    assert opened.info()["results"] == 3 and opened.find(key_of("new"))
    opened.close()


def test_a_new_result_stays_even_if_the_clock_was_set_back(tmp_path):
    fill(tmp_path / "c.db", range(3))
    connection = sqlite3.connect(tmp_path / "c.db")
    with connection:
        connection.execute("UPDATE results SET used = used + 1e6")
    connection.close()
    opened = ResultCache(tmp_path / "c.db", max_rows=3)
    assert put(opened, "new") == '{"a": 1}' and opened.find(key_of("new")) and opened.find(key_of(0)) is None
    opened.close()


def test_uses_are_written_now_and_then_without_a_new_result(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "FLUSH_USES", 3)
    fill(tmp_path / "c.db", range(3))
    opened = ResultCache(tmp_path / "c.db")
    for name in (0, 0, 1, 2):  # the third one is due to be written
        opened.find(key_of(name))
    opened._thread.submit(lambda: None).result()
    assert rows(tmp_path / "c.db", "hits") == [(2,), (1,), (1,)]
    monkeypatch.setattr(cache, "FLUSH_S", 0.0)
    opened.find(key_of(1))
    opened._thread.submit(lambda: None).result()
    assert rows(tmp_path / "c.db", "hits") == [(2,), (2,), (1,)]
    opened.close()


def test_a_reader_changes_nothing_and_sees_what_others_write(tmp_path):
    path = tmp_path / "what? 100% #1 é.db"  # opened by a URI
    fill(path, range(2))
    before = rows(path)
    reader = ResultCache(path, writable=False)
    assert [reader.find(key_of(name)) for name in (0, 1, "new")] == ['{"of": 0}', '{"of": 1}', None]
    writer = ResultCache(path)
    put(writer, "new")
    assert reader.find(key_of("new")) == '{"a": 1}' and reader.info()["results"] == 3
    writer.close()
    reader.close()
    assert rows(path)[:2] == before


def test_many_threads_share_one_cache(tmp_path):
    opened = ResultCache(tmp_path / "c.db", max_rows=150)

    def work(seed):
        for number in range(60):
            name = [seed, number]
            assert opened.find(key_of(name)) is None
            assert put(opened, name, json.dumps(name)) == json.dumps(name)
            assert opened.find(key_of(name)) in (json.dumps(name), None)  # others may have pushed it out
        return True

    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(work, range(6)))
    assert opened.info() == {"results": 150, "bytes": opened.info()["bytes"], "evicted": 210}
    opened.close()
    assert sqlite3.connect(tmp_path / "c.db").execute("SELECT sum(bytes), count(*) FROM results").fetchone() == (
        sqlite3.connect(tmp_path / "c.db").execute("SELECT bytes, rows FROM size").fetchone()
    )
