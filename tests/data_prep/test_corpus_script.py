"""data_prep/corpus.py: repeats, errors, and what it says to do next."""

import json
import re

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
