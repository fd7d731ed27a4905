"""The store on disk: reopening, snapshots, what is refused, hostile texts."""

import random
import re
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.memory.histories import Halves, episodes, everything
from tests.memory.writer import RULES, made_at
from verl_ext.memory import Episode, HashingSimilarity, MemoryStore, Rules, Use
from verl_ext.storage.sqlite import StorageError

HOSTILE = [
    "\ud800 lone \udfff surrogates",
    "NUL \x00 in the \x00 middle",
    "x" * 1_000_000,
    "'; DROP TABLE memories; --",
    '"]}\n</memory>\r\u2028\ufeff',
    "𝔘nicode 数学 🧮 é\u0301",
    "",
]


def won(question, query, output="a", plan=(), agent="math", reward=2.0):
    """Five trajectories; the first stands out and is remembered."""
    first = Episode(question, "0", reward, 0.0, (Use(agent, query, plan, output),))
    return [first, *(Episode(question, str(n), 0.0, 0.0) for n in range(1, 5))]


def grown(folder, steps=6, similarity=None):
    store = MemoryStore(folder, RULES, similarity or Halves())
    for step in range(1, steps + 1):
        store.apply(step, made_at(step, store.view()))
    return store


def test_a_memory_is_found_again(tmp_path):
    with grown(tmp_path / "new" / "folder") as store:
        before = store.view()
        assert store.version == 6 and len(before) > 10
    with MemoryStore(tmp_path / "new" / "folder", RULES, Halves()) as store:
        after = store.view()
        assert after.content_hash() == before.content_hash() and everything(after) == everything(before)
        assert after.recall("math", "query 3", 5) == before.recall("math", "query 3", 5)
        store.apply(7, made_at(7, after))
        assert store.version == 7


@pytest.mark.parametrize("seed", range(2))
def test_the_rows_are_the_view(tmp_path, seed):
    """After every step, with deletions, insertions and decay, the file holds what the view says, bit by bit."""
    rng = random.Random(seed)
    with MemoryStore(tmp_path, Rules(alpha=0.07, capacity=4), Halves()) as store:
        for step in range(1, 25, 1 + seed % 2):
            store.apply(step, episodes(rng, store.view(), step))
            assert store._database.load().content_hash() == store.view().content_hash()


def test_hostile_texts_come_back_and_can_be_recalled(tmp_path):
    made = [
        episode
        for number, text in enumerate(HOSTILE)
        for episode in won(f"{text}{number}", text, text or "said", (text, "tool", text), agent=f"agent {number}")
    ]
    with MemoryStore(tmp_path) as store:
        store.apply(1, made)
        before = everything(store.view())
        digest = store.view().content_hash()
    assert len(before) == len(HOSTILE)
    with MemoryStore(tmp_path) as store:
        assert everything(store.view()) == before and store.view().content_hash() == digest
        for number, text in enumerate(HOSTILE):
            (memory,) = store.view().memories(f"agent {number}")
            assert memory.query == text[:8192].replace("\ud800", "?").replace("\udfff", "?")
            assert memory.output == (memory.query or "said"), "a blank output would be no memory"
            assert len(memory.query) <= 8192 and sum(map(len, memory.plan)) <= 8192
            found = store.view().recall(f"agent {number}", text, 1)
            assert found and found[0].similarity == pytest.approx(1) if text else found == []
    assert before[2].plan == ("x" * 8192,) and before[0].plan == ("? lone ? surrogates", "tool", "? lone ? surrogates")


def test_a_plan_is_bounded(tmp_path):
    use = Use("math", "q", ("a" * 8000, "b" * 200, "c"), "a")
    assert use.plan == ("a" * 8000, "b" * 192)
    assert len(Use("math", "q", ("",) * 10**6, "a").plan) == 8192


def test_a_snapshot_is_one_file_and_is_restored_whole(tmp_path):
    with grown(tmp_path / "memory") as store:
        at_six = store.view().content_hash()
        path = store.snapshot(tmp_path / "global_step_6" / "memory")
        assert [entry.name for entry in path.parent.iterdir()] == ["memory.sqlite"] and path.is_file()
        for step in range(7, 12):
            store.apply(step, made_at(step, store.view()))
        before = store.view()
        store.restore(path.parent)
        assert store.version == 6 and store.view().content_hash() == at_six
        with pytest.raises(ValueError, match=r"no view of version 11 is kept; there are \[6\]"):
            store.view(11)
        assert before.version == 11 and before.content_hash() != at_six  # who holds a view keeps it
    with MemoryStore(tmp_path / "elsewhere", RULES, Halves()) as other:
        other.restore(tmp_path / "global_step_6" / "memory")
        assert other.view().content_hash() == at_six
    with MemoryStore(tmp_path / "memory", RULES, Halves()) as store:
        assert store.view().content_hash() == at_six


def test_a_snapshot_replaces_the_one_that_was_there(tmp_path):
    with grown(tmp_path / "memory", 2) as store:
        store.snapshot(tmp_path / "copy")
        (tmp_path / "copy" / ".memory.sqlite.99.part").write_bytes(b"of a copy that was killed")
        (tmp_path / "copy" / ".memory.sqlite.99.part-journal").write_bytes(b"its journal")
        store.apply(3, made_at(3, store.view()))
        now = store.view().content_hash()
        store.snapshot(tmp_path / "copy")
        store.apply(4, [])
        store.restore(tmp_path / "copy")
        assert store.view().content_hash() == now
    assert [entry.name for entry in (tmp_path / "copy").iterdir()] == ["memory.sqlite"]


def test_a_snapshot_of_a_read_only_checkpoint_can_be_restored(tmp_path):
    with grown(tmp_path / "memory", 3) as store:
        path = store.snapshot(tmp_path / "copy")
        path.chmod(stat.S_IREAD)
        path.parent.chmod(stat.S_IREAD | stat.S_IEXEC)
        store.apply(4, [])
        store.restore(tmp_path / "copy")
        assert store.version == 3
        path.parent.chmod(stat.S_IRWXU)


def test_damaged_and_foreign_snapshots_are_refused_and_nothing_is_replaced(tmp_path):
    with grown(tmp_path / "memory") as store:
        before = store.view().content_hash()
        copy = store.snapshot(tmp_path / "copy")
        with pytest.raises(ValueError, match="there is no memory at .*Remedy: name the folder given to `snapshot`"):
            store.restore(tmp_path / "none")
        whole = copy.read_bytes()
        for content in (
            b"",
            b"not a database at all" * 100,
            whole[: len(whole) // 2],
            whole[:5000] + bytes(9000) + whole[14000:],
        ):
            copy.write_bytes(content)
            with pytest.raises(ValueError, match="is damaged, or no memory|is empty"):
                store.restore(copy.parent)
            assert store.view().content_hash() == before
        with grown(tmp_path / "other", 1, HashingSimilarity(64)) as other:
            other.snapshot(tmp_path / "copy64")
        with pytest.raises(ValueError, match="holds vectors of the similarity 'hashing-64-v1', given is 'halves'"):
            store.restore(tmp_path / "copy64")
    with MemoryStore(tmp_path / "memory", RULES, Halves()) as store:
        assert store.view().content_hash() == before


def test_another_similarity_schema_or_file_is_refused_and_the_folder_let_go(tmp_path):
    grown(tmp_path, 2).close()
    with pytest.raises(ValueError, match="similarity 'halves', given is 'hashing-128-v1'; give the former"):
        MemoryStore(tmp_path)
    MemoryStore(tmp_path, RULES, Halves()).close()
    connection = sqlite3.connect(tmp_path / "memory.sqlite")
    connection.execute("PRAGMA user_version=2")
    connection.close()
    with pytest.raises(ValueError, match="has version 2, this verl_ext reads version 1"):
        MemoryStore(tmp_path, RULES, Halves())
    (tmp_path / "memory.sqlite").write_bytes(b"a thesis, not a database" * 1000)
    with pytest.raises(ValueError, match="is damaged, or no memory .*Remedy: restore a copy"):
        MemoryStore(tmp_path, RULES, Halves())
    (tmp_path / "memory.sqlite").unlink()
    MemoryStore(tmp_path, RULES, Halves()).close()


def test_a_memory_with_damaged_pages_is_refused_with_a_remedy(tmp_path):
    grown(tmp_path).close()
    file = tmp_path / "memory.sqlite"
    file.write_bytes(file.read_bytes()[:8192].ljust(file.stat().st_size, b"\xaa"))
    damaged = file.read_bytes()
    with pytest.raises(ValueError, match="is damaged, or no memory .*Remedy: restore a copy"):
        MemoryStore(tmp_path, RULES, Halves())
    assert file.read_bytes() == damaged


def test_a_snapshot_that_cannot_be_written_is_a_tool_error(tmp_path):
    (tmp_path / "copy" / "memory.sqlite" / "in the way").mkdir(parents=True)
    with grown(tmp_path / "memory", 1) as store, pytest.raises(StorageError, match="could not be copied to"):
        store.snapshot(tmp_path / "copy")


def test_other_rules_may_be_given_when_a_memory_is_opened(tmp_path):
    grown(tmp_path).close()
    with MemoryStore(tmp_path, Rules(alpha=0, capacity=1), Halves()) as store:
        assert store.apply(7, [])["memories"] == 3  # of three agents


def test_the_documentation_s_example_needs_no_optional_library(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "memory.md").read_text()
    example, _ = re.findall(r"```python\n(.+?)```", page, re.DOTALL)  # the other: tests/mas/test_memory.py
    program = f"""
import sys
sys.modules |= {{"faiss": None, "sentence_transformers": None}}
{example}
print(format_memories(store.view().recall("math", question, k=3)))
print(sorted({{"torch", "verl", "ray", "bm25s"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=500)
    counts, memories, modules = done.stdout.splitlines()
    assert counts in page and "48 + 24 = 72" in memories and modules == "[]", done.stderr
    assert (tmp_path / "runs" / "mine" / "global_step_1" / "memory" / "memory.sqlite").is_file()
