"""The command that measures retrieval: on a small corpus, killed, repeated, and with wrong arguments."""

import json
import signal
import subprocess
import sys
from dataclasses import asdict

import pytest

from verl_ext.tools import measuring
from verl_ext.tools.retrieval import Passage, build_index, measure
from verl_ext.tools.retrieval.measure import compare, table
from verl_ext.tools.retrieval.targets import plans

TOWNS = ["Istra", "Grado", "Estal", "Haskel", "Karsa"]
PASSAGES = [Passage(str(i), f"Person {i}", f"person{i} was born in {TOWNS[i % 5]}.") for i in range(60)]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def files(tmp_path):
    """(corpus, questions): each question names one person; its second gold title is another or in no passage."""
    corpus = write(tmp_path / "corpus.jsonl", map(asdict, PASSAGES))
    questions = []
    for name, other in (("half", "nobody"), ("full", "PERSON  {}")):
        rows = [
            {"question": f"Where was person{i} born?", "gold_titles": [f"Person {i}", other.format(i)]}
            for i in range(20)
        ]
        questions.append(write(tmp_path / f"{name}.jsonl", [*rows, {"question": "?", "gold_titles": []}]))
    return corpus, questions


def rows_of(folder):
    rows = json.loads((folder / "data" / "retrieval" / "measure.json").read_text())
    return {(row["questions"], row["backend"], row["index"]): row for row in rows}


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """The command in this process, in a folder of its own; a speed is measured for an instant."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measuring, "SECONDS", 0.0)
    return measure.main


def test_bm25_and_a_second_call_that_measures_nothing(tmp_path, files, quick, capsys):
    corpus, questions = files
    arguments = ["--corpus", corpus, "--backend", "bm25", "--questions", *questions]
    assert quick(arguments) == 0
    printed, rows = capsys.readouterr().out, rows_of(tmp_path)
    half, full = (rows[name, "bm25", "inverted"] for name in ("half", "full"))
    assert (half["recall@5"], half["all@5"], half["gold_titles_in_corpus"]) == (0.5, 0.0, 0.5)
    assert (full["recall@5"], full["all@5"], full["gold_titles_in_corpus"]) == (1.0, 1.0, 1.0)
    assert half["asked"] == 20 and half["without_gold_titles"] == 1 and "20 questions, 1 without gold" in printed
    assert "half: some gold titles are not in the corpus; no recall can be above 0.500" in printed
    index = next((tmp_path / "data" / "retrieval" / "indexes").glob("bm25-*/bm25"))
    assert half["index MiB"] * 2**20 == sum(file.stat().st_size for file in index.iterdir())
    assert half["queries/s"] > 0 and half["build s"] > 0
    assert quick(arguments) == 0
    again = capsys.readouterr().out
    assert "building" not in again and rows_of(tmp_path) == rows
    assert again.split("\n\n")[1] == printed.split("\n\n")[1]  # the table
    assert quick([*arguments, "--max_questions", "3"]) == 0
    assert "3 questions" in capsys.readouterr().out and rows_of(tmp_path)["half", "bm25", "inverted"]["asked"] == 3


KILLED = """
import os, signal, sys
from verl_ext.tools.retrieval import measure

do, calls = measure.search_all, []

def killed_at_the_second(*arguments):
    calls.append(arguments)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return do(*arguments)

measure.search_all = killed_at_the_second
measure.main(sys.argv[1:])
"""


def test_a_killed_call_keeps_its_rows_and_the_next_one_continues(tmp_path, files, quick, capsys):
    corpus, questions = files
    arguments = ["--corpus", corpus, "--backend", "bm25", "--questions", *questions]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], cwd=tmp_path, stdout=subprocess.DEVNULL)
    saved = tmp_path / "data" / "retrieval" / "rows"
    assert killed.returncode == -signal.SIGKILL
    assert not list(saved.glob("full-*")) and not (saved.parent / "measure.json").exists()
    (first,) = saved.glob("half-*.json")
    before = first.read_bytes(), first.stat().st_mtime_ns
    assert quick(arguments) == 0 and "building" not in capsys.readouterr().out
    assert (first.read_bytes(), first.stat().st_mtime_ns) == before and len(rows_of(tmp_path)) == 2


def test_an_index_as_it_is_and_another_corpus_is_measured_anew(tmp_path, files, quick, capsys):
    found = []
    for number, part in enumerate((PASSAGES, PASSAGES[10:])):
        build_index(part, tmp_path / "index", overwrite=bool(number))
        assert quick(["--index", "index", "--questions", files[1][1]]) == 0
        found.append(rows_of(tmp_path)["full", "bm25", "inverted"])
    assert [row["recall@10"] for row in found] == [1.0, 0.5] and found[0]["build s"] is None
    printed = capsys.readouterr().out
    assert "| full      | bm25    | inverted |" in printed and "–" in printed


def test_each_index_is_opened_once_and_each_corpus_read_once(tmp_path, files, quick, monkeypatch):
    _, questions = files
    for name, options in (("a", {}), ("b", {"k1": 0.9})):
        build_index(PASSAGES, tmp_path / name, options=options)
    opened, read = [], []
    for name, calls in (("load_index", opened), ("PassageStore", read)):
        original = getattr(measure, name)
        monkeypatch.setattr(measure, name, lambda folder, calls=calls, do=original: calls.append(folder) or do(folder))
    assert quick(["--index", "a", "b", "--questions", *questions]) == 0
    assert [path.name for path in opened] == ["a", "b"] and [path.name for path in read] == ["a"]
    assert quick(["--index", "a", "b", "--questions", *questions]) == 0
    assert len(opened) == 2  # all rows are saved


def test_several_indexes_are_told_apart(tmp_path, files, quick, capsys):
    _, (half, full) = files
    build_index(PASSAGES, tmp_path / "a" / "index")
    build_index(PASSAGES[10:], tmp_path / "b" / "index")
    assert quick(["--index", "b/index", "a/index", "--questions", half, full]) == 0
    rows = rows_of(tmp_path)
    shares = {key[0] + key[2]: row["gold_titles_in_corpus"] for key, row in rows.items()}
    assert shares == {
        "halfinverted, a/index": 0.5,
        "fullinverted, a/index": 1.0,
        "halfinverted, b/index": 0.25,
        "fullinverted, b/index": 0.5,
    }
    said = capsys.readouterr().out
    assert "half, b/index: some gold titles are not in the corpus; no recall can be above 0.250" in said
    assert "full, b/index: some" in said and "half, a/index: some" in said and "full, a/index: some" not in said
    assert quick(["--index", "a/index", "--questions", half]) == 0  # alone it needs no label, saved or not
    assert list(rows_of(tmp_path)) == [("half", "bm25", "inverted")]


def test_another_model_in_the_same_folder_is_another_index(tmp_path):
    (tmp_path / "weights.safetensors").write_bytes(b"one")
    arguments = measure.parse_arguments(
        ["--corpus", "c.jsonl", "--questions", "q.jsonl", "--backend", "dense", "--model", str(tmp_path), "minilm"]
    )
    before = plans(arguments)
    (tmp_path / "README.md").write_text("text")
    assert plans(arguments) == before
    (tmp_path / "weights.safetensors").write_bytes(b"two")
    assert [one == other for one, other in zip(before, plans(arguments), strict=True)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--corpus", "c", "--backend", "bm25", "--model", "m"], "--model would do nothing; add --backend dense"),
        (["--corpus", "c", "--dense_index", "exact", "--ivf_probes", "8"], "--ivf_probes would do nothing; add"),
        (["--index", "i", "--model", "m"], "--model would do nothing: the indexes of --index are built already"),
        (["--index", "i", "--ivf_probes", "8"], "--ivf_probes would do nothing: none of the indexes is an ivf index"),
        (["--index", "i", "--device", "cpu"], "--device would do nothing: none of the indexes is dense"),
        (["--index", "i", "i"], "--index: the same folder is given twice"),
        (["--index", "none"], "no index at none"),
        (["--corpus", "folder", "--backend", "bm25"], "corpus file folder does not exist, or is no file"),
        (["--corpus", "c.jsonl", "--ivf_probes", "0"], "must be >= 1"),
        ([], "one of the arguments --corpus --index is required"),
        (["--corpus", "c.jsonl", "--questions", "a/q.jsonl", "a/q.jsonl"], "the files need different names"),
        (["--index", "i", "--questions", "none.jsonl"], "questions file none.jsonl does not exist"),
    ],
)
def test_wrong_arguments_and_flags_without_effect_are_refused(tmp_path, quick, capsys, given, message):
    build_index([Passage("1", "A", "amber")], tmp_path / "i")
    (tmp_path / "folder").mkdir()
    write(tmp_path / "c.jsonl", map(asdict, PASSAGES))
    write(tmp_path / "q.jsonl", [{"question": "who?", "gold_titles": ["A"]}])
    try:
        status = quick(given if "--questions" in given else [*given, "--questions", "q.jsonl"])
    except SystemExit as error:
        status = error.code
    assert status == 2 and message in capsys.readouterr().err and not (tmp_path / "data").exists()


def test_same_at_ten_and_the_table_by_hand():
    row = {"questions": "q", "backend": "dense m", "asked_of": "x", "corpus_sha256": "c", "recall@5": 0.25}
    exact = {**row, "index": "exact", "options": {"index": "exact", "model": "m"}, "found": [list("abcd"), ["e"], []]}
    ivf = {**row, "index": "ivf, 8 probes", "options": {"index": "ivf", "model": "m"}, "found": [list("abxy"), [], []]}
    other = {**ivf, "options": {"index": "ivf", "model": "n"}}
    compare([ivf, exact, other])
    assert ivf["same@10"] == (2 / 4 + 0 / 1) / 2 and "same@10" not in exact and "same@10" not in other
    lines = table([exact, {**ivf, "questions": "a", "queries/s": 1234.5}]).splitlines()
    assert len({len(line) for line in lines}) == 1 and len(lines) == 4
    assert lines[2].startswith("| a         | dense m | ivf, 8 probes |    0.250 |") and "1,234" in lines[2]


def test_the_test_questions_of_two_sets_are_measured_together(tmp_path, files, quick):
    """data_prep calls the questions of every set test.parquet: their folders tell them apart."""
    corpus, questions = files
    for path, name in zip(questions, ("one", "two"), strict=True):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "test.jsonl").write_text(open(path).read())
    asked = [f"data/{name}/test.jsonl" for name in ("one", "two")]
    assert quick(["--corpus", corpus, "--backend", "bm25", "--questions", *asked]) == 0
    assert {name: row["recall@5"] for (name, *_), row in rows_of(tmp_path).items()} == {
        "one-test": 0.5,
        "two-test": 1.0,
    }
