"""The cache of indexes: built once whoever asks, repaired when it is broken, and safe against kill -9."""

import json
import logging
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from tests.tools.test_catalogue_search import Letters
from verl_ext.tools.catalogue import Catalogue, ToolSpec
from verl_ext.tools.catalogue.search import indexes as module
from verl_ext.tools.catalogue.search.documents import passages
from verl_ext.tools.catalogue.search.indexes import cached_index, default_cache
from verl_ext.tools.retrieval import Passage, vectors

PASSAGES = [Passage(f"tool{i}", f"tool{i}", f"does thing number n{i}") for i in range(50)]

# A process that builds slowly, after saying so; and answers a query.
PROGRAM = """
import sys, time
from pathlib import Path
from unittest import mock
from verl_ext.tools.catalogue.search import indexes as cache
from verl_ext.tools.retrieval.bm25 import BM25Retriever
from tests.tools.test_catalogue_cache import PASSAGES

save = BM25Retriever.save

def slowly(self, folder):
    (folder / "half").write_text("half an index")
    print("building", flush=True)
    time.sleep(float(sys.argv[2]))
    (folder / "half").unlink()
    save(self, folder)

with mock.patch.object(BM25Retriever, "save", slowly):
    found = cache.cached_index(PASSAGES, "bm25", {}, Path(sys.argv[1])).search(["n7"], 1)
print("found", found[0][0].passage.pid, flush=True)
"""


def start(cache, seconds):
    command = [sys.executable, "-c", PROGRAM, str(cache), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def found(cache, options=None, items=PASSAGES):
    return [hit.passage.pid for hit in cached_index(items, "bm25", options or {}, cache).search(["n7"], 3)[0]]


@pytest.fixture
def built(monkeypatch):
    """How often an index was built in this process."""
    calls, build = [], module.build_index

    def counted(*arguments, **options):
        calls.append(arguments[1])
        return build(*arguments, **options)

    monkeypatch.setattr(module, "build_index", counted)
    return calls


def test_an_index_is_built_once_for_what_it_depends_on(tmp_path, built):
    for _ in range(2):
        assert found(tmp_path) == ["tool7"] and len(built) == 1
    found(tmp_path, {"k1": 2.0})
    found(tmp_path, items=PASSAGES[5:])
    assert len(built) == len(set(built)) == 3
    found(tmp_path, {"k1": 1.5, "title_weight": 2})  # the defaults, said
    assert len(built) == 3


def test_only_what_is_searched_decides(tmp_path, built):
    def build(tools):
        cached_index(passages(Catalogue(tools).values()), "bm25", {}, tmp_path)

    tools = [ToolSpec("a", "one", returns=1), ToolSpec("b", "two")]
    build(tools)
    build([tools[1], ToolSpec("a", "one", returns=2, source="mcp", extra={"x": 1})])
    assert len(built) == 1
    build([tools[1], ToolSpec("a", "ones")])
    assert len(built) == 2


def test_every_broken_file_is_noticed_and_the_index_built_again(tmp_path, built, caplog):
    found(tmp_path)

    def files():
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}

    whole = files()
    assert len(whole) > 5
    for number, path in enumerate(whole):
        path.write_bytes(b"broken") if number % 2 else path.unlink()
        with caplog.at_level(logging.WARNING, module.__name__):
            caplog.clear()
            assert found(tmp_path) == ["tool7"]
        assert "cannot be used and is built again" in caplog.text, path
        assert len(built) == number + 2 and files() == whole


def test_processes_wait_for_the_one_that_builds_and_one_of_them_builds_if_that_is_killed(tmp_path):
    killed = start(tmp_path, 60)
    assert killed.stdout.readline() == "building\n"
    (place,) = tmp_path.iterdir()
    waiting = [start(tmp_path, 0.3) for _ in range(2)]
    assert all("another process builds" in process.stderr.readline() for process in waiting)
    assert list(place.glob(".index.*/half")) and not (place / "index").exists()
    killed.kill()
    killed.wait()
    outputs = [process.communicate(timeout=500)[0] for process in waiting]
    assert sorted(outputs) == ["building\nfound tool7\n", "found tool7\n"]
    assert sorted(path.name for path in place.iterdir()) == [".lock", "index"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match="cache of tool indexes cannot be written.*choose another cache_dir"):
        found(tmp_path / "file" / "cache")


def test_the_users_cache_folder(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache() == Path("/somewhere/verl_ext/tool_search")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path.home() / ".cache" / "verl_ext" / "tool_search"


# Dense indexes, with a stand-in for the model

DENSE = """
import os, signal, sys
from pathlib import Path
from unittest import mock
from verl_ext.tools.catalogue.search.indexes import cached_index
from verl_ext.tools.retrieval import vectors
from tests.tools.test_catalogue_cache import PASSAGES
from tests.tools.test_catalogue_search import Letters

vectors.CHUNK, embedded = 10, []

class Killed(Letters):
    def encode(self, texts, **options):
        embedded.extend(texts)
        if len(embedded) > 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(texts, **options)

with mock.patch("verl_ext.tools.retrieval.dense.load_encoder", return_value=Killed()):
    cached_index(PASSAGES, "dense", {}, Path(sys.argv[1]))
"""


def test_a_killed_embedding_goes_on_and_its_vectors_go_when_it_is_done(tmp_path, monkeypatch):
    pytest.importorskip("faiss", reason="dense search needs `pip install verl_ext[retrieval]`")
    cache, broken = tmp_path / "cache", tmp_path / "broken"
    assert subprocess.run([sys.executable, "-c", DENSE, str(cache)], timeout=500).returncode == -signal.SIGKILL
    (place,) = cache.iterdir()
    state = place / "vectors" / "state.json"
    assert json.loads(state.read_text())["rows"] == 20
    (shutil.copytree(cache, broken) / state.relative_to(cache)).write_text("{")
    monkeypatch.setattr(vectors, "CHUNK", 10)
    for folder, count in ((cache, 30), (broken, 50)):  # what is broken is made again
        letters = mock.Mock(wraps=Letters())
        monkeypatch.setattr("verl_ext.tools.retrieval.dense.load_encoder", lambda *_, letters=letters: letters)
        assert len(cached_index(PASSAGES, "dense", {}, folder)) == 50
        texts = [text for called in letters.encode.call_args_list for text in called.args[0]]
        assert len([text for text in texts if text.startswith("tool")]) == count
        assert sorted(path.name for path in (folder / place.name).iterdir()) == [".lock", "index"]


def test_an_index_stays_while_its_model_cannot_be_loaded(tmp_path, monkeypatch, built):
    pytest.importorskip("faiss", reason="dense search needs `pip install verl_ext[retrieval]`")
    down: list[str] = []

    def load(*_):
        if down:
            raise ValueError(*down)
        return Letters()

    monkeypatch.setattr("verl_ext.tools.retrieval.dense.load_encoder", load)
    cached_index(PASSAGES, "dense", {}, tmp_path)
    down.append("the hub does not answer")
    with pytest.raises(ValueError, match="the hub does not answer"):
        cached_index(PASSAGES, "dense", {}, tmp_path)
    del down[:], built[:]
    assert len(cached_index(PASSAGES, "dense", {}, tmp_path)) == 50 and not built
