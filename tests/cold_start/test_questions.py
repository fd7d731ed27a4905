"""Demonstrations on real questions: what they show, the agents' own parsers read, and leads to the gold answer."""

import json

import pyarrow.parquet
import pytest

from verl_ext.data_prep import corpus
from verl_ext.recipe.mhgpo import parsers, prompts
from verl_ext.recipe.mhgpo.cold_start import questions, single
from verl_ext.storage.parquet import question_row, write_parquet

PASSAGES = [
    {"pid": "0", "title": "Gum Wall", "text": "The Gum Wall is a brick wall in Seattle, as is Bubblegum Alley."},
    {"pid": "1", "title": "Bubblegum Alley", "text": "Bubblegum Alley is a landmark in San Luis Obispo, California."},
    {"pid": "2", "title": "Hayden (singer)", "text": "Hayden is a songwriter from Canada; he sings."},
    {"pid": "3", "title": "Buck-Tick", "text": "Buck-Tick is a rock band from Fujioka."},
    {"pid": "4", "title": "Seattle", "text": "Seattle is a city."},
]
ASKED = [
    ("Where is the alley that is like Gum Wall?", "San Luis Obispo", ["Gum Wall", "Bubblegum Alley"]),
    ("Are Hayden; and Buck-Tick both musicians?", "Yes", ["Hayden (singer)", "Buck-Tick"]),
    ("Who painted Buck-Tick?", "Nobody knows", ["Buck-Tick"]),
    ("What is zyx?", "abc", ["Zyx"]),
]


@pytest.fixture
def folder(tmp_path):
    rows = [
        question_row("hotpotqa", text, {"target": [answer]}, "qa", "train", n, gold_titles=titles)
        for n, (text, answer, titles) in enumerate(ASKED)
    ]
    write_parquet(rows, tmp_path / "train.parquet")
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in PASSAGES))
    made = corpus.main(["--input", str(tmp_path / "corpus.jsonl"), "--output_dir", str(tmp_path / "index"), "--quiet"])
    assert made == 0
    return tmp_path


def run(folder, *more):
    places = ["--questions", f"{folder}/train.parquet", "--index", f"{folder}/index", "--output_dir", f"{folder}/out"]
    return questions.main([*places, *more])


def test_demonstrations_are_read_by_the_agents_parsers_and_lead_to_the_answer(folder, capsys):
    assert run(folder, "--first", "3") == 0
    rows = pyarrow.parquet.read_table(folder / "out/demonstrations.parquet").to_pylist()
    assert [row["agent"] for row in rows] == ["rewriter", "reranker", "answerer"] * 2 + ["rewriter", "reranker"]
    assert "rewriter 3, reranker 3, answerer 2" in capsys.readouterr().out
    for (text, answer, titles), first in zip(ASKED[:2], (rows[:3], rows[3:6]), strict=True):
        rewriter, reranker, answerer = (row["messages"] for row in first)
        assert rewriter[:-1] == prompts.rewriter(text)
        found = parsers.queries(rewriter[-1]["content"], question=text)
        assert found[-1] == text.replace(";", ",") and found[0] == titles[0].split(" (")[0]
        shown = [p for p in PASSAGES if f"title: {p['title']}," in reranker[-2]["content"]]
        order = sorted(shown, key=lambda p: reranker[-2]["content"].index(f"title: {p['title']},"))
        chosen = parsers.chosen_documents(reranker[-1]["content"], docs=order)
        assert {doc["title"] for doc in chosen} == set(titles)
        assert answerer[:-1] == prompts.answerer(text, chosen)
        assert parsers.answer(answerer[-1]["content"]).lower() == answer.lower()
    trained = pyarrow.parquet.read_table(folder / "out/rl.parquet").to_pylist()
    assert [row["extra_info"]["question"] for row in trained] == [text for text, *_ in ASKED[:2]]


def test_the_demonstrations_come_last(folder, capsys):
    """`make real` takes them for the sign that all is there."""
    (folder / "out" / "rl.parquet").mkdir(parents=True)  # it cannot be written
    assert run(folder) == 2 and "rl.parquet" in capsys.readouterr().err
    assert not (folder / "out" / "demonstrations.parquet").exists()


def test_the_single_agent_answers_where_its_passages_have_the_gold_answer(folder, capsys):
    places = [
        "--questions",
        f"{folder}/train.parquet",
        "--index",
        f"{folder}/index",
        "--output",
        f"{folder}/one.parquet",
    ]
    assert single.main(places) == 0
    rows = pyarrow.parquet.read_table(folder / "one.parquet").to_pylist()
    assert [(row["agent"], row["messages"][-1]["content"]) for row in rows] == [
        ("single", "San Luis Obispo"),
        ("single", "yes"),
    ]
    shown = [p for p in PASSAGES if f"title: {p['title']}," in rows[0]["messages"][-2]["content"]]
    assert len(shown) > 2, "it reads all passages that its question finds, not the gold ones alone"
    assert "left out: 2 questions that the rule does not solve" in capsys.readouterr().out


def test_an_index_of_other_passages_is_told(folder, capsys):
    rows = pyarrow.parquet.read_table(folder / "train.parquet")
    pyarrow.parquet.write_table(rows.slice(3), folder / "train.parquet")
    assert run(folder) == 2
    assert "was the index made from the passages of these questions?" in capsys.readouterr().err


def test_titles_that_begin_at_the_same_place_keep_their_order():
    """The order of a set of texts differs from process to process, and with it the demonstrations did."""
    for number in range(64):
        titles = [f"Ada {number}", f"Ada {number} Lane"]
        asked = f"Where is {titles[1]}?"
        assert questions.queries(asked, titles) == [*titles, asked]
        assert questions.queries(asked, titles[::-1]) == [*titles[::-1], asked]
