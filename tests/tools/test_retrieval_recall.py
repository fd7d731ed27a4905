"""Recall of gold titles: the definitions by hand, titles in other spellings, and questions files of every kind."""

import json
import unicodedata

import pytest

from verl_ext.data_prep.qa import qa_schema, verl_row
from verl_ext.data_prep.qa_rows import QARow
from verl_ext.parquet import write_parquet
from verl_ext.tools.retrieval.recall import Question, read_questions, recall, same_title


def question(*gold):
    return Question("?", frozenset(map(same_title, gold)))


def test_recall_and_all_by_hand():
    questions = [question("A", "B"), question("C"), question("D", "E", "F", "G")]
    found = [["x", "A", "x", "x", "x", "B"], ["C"], ["E", "x", "D", "G", "x", "x", "F"]]
    # among five: 1 of 2, 1 of 1, 3 of 4; among ten: all of them
    assert recall(questions, found, 5) == (pytest.approx((0.5 + 1 + 0.75) / 3), pytest.approx(1 / 3))
    assert recall(questions, found, 10) == (1.0, 1.0)
    assert recall(questions, found, 1) == (pytest.approx((0 + 1 + 0.25) / 3), pytest.approx(1 / 3))
    assert recall(questions, [[], [], []], 5) == (0.0, 0.0)


def test_several_passages_of_one_title_count_once_and_take_their_places():
    found = [["A", "A", "A", "A", "A", "B"]]
    assert recall([question("A", "B")], found, 5) == (0.5, 0.0)
    assert recall([question("A", "B")], found, 6) == (1.0, 1.0)


@pytest.mark.parametrize(
    "one, other",
    [
        ("God'S Gift To Women", "God's Gift to Women"),
        ("Andrzej Żuławski", unicodedata.normalize("NFD", "Andrzej Żuławski")),
        ("Straße", "STRASSE"),
        ("Fast Cars &amp; Freedom", "Fast Cars & Freedom"),
        ("  New\u00a0York\tCity ", "New York City"),
    ],
)
def test_titles_in_another_spelling_are_the_same(one, other):
    assert one != other and recall([question(one)], [[other]], 5) == (1.0, 1.0)


@pytest.mark.parametrize("one, other", [("Zulawski", "Żuławski"), ("Paris", "Paris (Texas)"), ("C", "C++")])
def test_other_titles_stay_other(one, other):
    assert recall([question(one)], [[other]], 5) == (0.0, 0.0)


def write(path, *rows):
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def test_jsonl_with_repeated_titles_and_questions_without_gold_titles(tmp_path):
    rows = [
        {"question": "one", "gold_titles": ["A", "a", "B"], "answers": ["x"]},
        {"question": "none", "gold_titles": []},
        {"question": "null", "gold_titles": None},
        {"question": "missing"},
        {"question": "blank", "gold_titles": [" "]},
        {"extra_info": {"question": "two", "gold_titles": ["C"]}, "question": "not this one"},
    ]
    path = write(tmp_path / "q.jsonl", "\n", *rows)
    questions, without = read_questions(path)
    assert [(q.text, sorted(q.gold)) for q in questions] == [("one", ["a", "b"]), ("two", ["c"])] and without == 4
    assert read_questions(path, 2) == (questions[:1], 1)


def test_the_parquet_of_data_prep(tmp_path):
    rows = [QARow("1", "who?", ("x",), ("A", "Ż")), QARow("2", "what?", ("y",))]
    verl_rows = [verl_row(row, "musique", "test", i) for i, row in enumerate(rows)]
    write_parquet(verl_rows, tmp_path / "test.parquet", qa_schema())
    assert read_questions(tmp_path / "test.parquet") == ([Question("who?", frozenset({"a", "ż"}))], 1)


@pytest.mark.parametrize(
    "text, message",
    [
        ("{broken\n", r"q.jsonl:1: not valid JSON"),
        pytest.param("[" * 100_000 + "\n", r"q.jsonl:1: not valid JSON", id="deep"),
        ('{"question": "a", "gold_titles": ["A"]}\n[1]\n', r"q.jsonl:2: given \[1\], expected"),
        ('{"question": 3, "gold_titles": ["A"]}\n', "q.jsonl:1: given"),
        ('{"question": "a", "gold_titles": "A"}\n', "q.jsonl:1: given"),
        ('{"question": "a", "gold_titles": [3]}\n', "q.jsonl:1: given"),
        ('{"question": "a"}\n', "none of its 1 questions has gold titles"),
        ("", "none of its 0 questions has gold titles"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_questions(write(tmp_path / "q.jsonl", text))


def test_files_that_are_absent_or_of_another_kind(tmp_path):
    with pytest.raises(ValueError, match="none.jsonl does not exist"):
        read_questions(tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match="suffix '.csv'; give a .parquet or .jsonl"):
        read_questions(write(tmp_path / "q.csv", "a,b"))
    with pytest.raises(ValueError, match="not a readable parquet"):
        read_questions(write(tmp_path / "q.parquet", "PAR1"))
