"""reasoning.py: rows as they are on the hub, splits that do not change, and errors."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from tests.data_prep.shared import write_jsonl
from tests.public_data import SHARED, needs_shared
from verl_ext.data_prep import reasoning
from verl_ext.data_prep.sources import questions
from verl_ext.recipe.puppeteer.scoring import score

ROWS = {
    "gsm8k": {"question": "How many?", "answer": "48/2 = <<48/2=24>>24\n#### 1,072"},
    "gsm_hard": {"input": "How many?", "target": -9867630.0},
    "mmlu_pro": {"question": "Which?", "options": ["a", "N/A", "c"], "answer": "C", "answer_index": 2},
    "commongen_hard": {"concepts": ["dog", "run"]},
}
GENERAL = {
    "gaia": {"task_id": "1", "Question": "Which?", "Level": 2, "Final answer": " Time ", "file_name": "a.xlsx"},
    "deepmath": {"question": "Half?", "final_answer": "\\frac{1}{2}", "difficulty": 6.0, "topic": "Algebra"},
    "webshaper": {"id": "1", "question": "Which club?", "formalization": "…", "answer": "Aston", "urls": []},
    "webdancer": {"question": "Which club?", "answer": "Aston"},
    "hle": {"question": "Which?", "answer": "c", "answer_type": "exactMatch", "image": "", "category": "Math"},
    "coig": {"instruction": "解释", "input": "什么是牛奶？", "output": "一种饮料。"},
}
RIGHT = {"gsm8k": "1072", "gsm_hard": "-9,867,630", "mmlu_pro": "(C)", "commongen_hard": "Dogs running."}


def written(tmp_path, name, rows, **options):
    reasoning.prepare(name, tmp_path / "out", write_jsonl(tmp_path / f"{name}.jsonl", rows), **options)
    return {p.stem: pq.read_table(p).to_pylist() for p in (tmp_path / "out").glob("*.parquet")}


@pytest.mark.parametrize("name", list(ROWS))
def test_a_row_and_its_right_answer(name, tmp_path):
    ((row,),) = written(tmp_path, name, [ROWS[name]]).values()
    assert row["data_source"] == name and row["extra_info"]["index"] == 0
    assert score(name, RIGHT[name], row["reward_model"]["ground_truth"]) == 1.0
    assert score(name, "Q 5", row["reward_model"]["ground_truth"]) == 0.0
    shown = {
        "mmlu_pro": "Which?\n(A) a\n(C) c\nAnswer with the letter of the right option.",
        "commongen_hard": "dog, run",
    }
    assert shown.get(name, "How many?") in row["prompt"][0]["content"]


@pytest.mark.parametrize(
    ("name", "text", "truth", "extra"),
    [
        (
            "gaia",
            "Which?\n\nAttached file: a.xlsx",
            {"kind": "exact", "target": ["Time"]},
            {"level": "2", "file": "a.xlsx"},
        ),
        ("deepmath", "Half?", {"kind": "math", "target": ["\\frac{1}{2}"]}, {"category": "Algebra", "level": "6.0"}),
        ("webshaper", "Which club?", {"kind": "qa", "target": ["Aston"]}, {}),
        ("webdancer", "Which club?", {"kind": "qa", "target": ["Aston"]}, {}),
        ("hle", "Which?", {"kind": "judged", "target": ["c"]}, {"category": "Math", "level": ""}),
        ("coig", "解释\n什么是牛奶？", {"kind": "qa", "target": ["一种饮料。"]}, {}),
    ],
)
def test_a_row_of_a_general_task(tmp_path, name, text, truth, extra):
    ((row,),) = written(tmp_path, name, [GENERAL[name]]).values()
    assert row["prompt"][0]["content"] == text and row["reward_model"]["ground_truth"] == truth
    assert row["extra_info"].items() >= extra.items()
    assert row["data_source"] == {"gaia": "gaia_file"}.get(name, name)


def test_benchmarks_are_not_trained_on_and_rows_that_nobody_can_answer_are_named(tmp_path, capsys):
    rows = [GENERAL["gaia"] | {"Question": f"{i}?"} for i in range(9)] + [GENERAL["gaia"] | {"Final answer": "?"}]
    write_jsonl(tmp_path / "GAIA" / "validation" / "metadata.jsonl", rows)
    (tmp_path / "GAIA" / "validation" / "a.csv").write_text("an attached file")
    assert reasoning.prepare("gaia", tmp_path / "out", tmp_path / "GAIA") == {"test.parquet": 9}
    assert "left out, no public answer: 1 (" in capsys.readouterr().out
    found = written(tmp_path, "hle", [GENERAL["hle"], GENERAL["hle"] | {"question": "See?", "image": "data:image"}])
    assert len(found["test"]) == 1 and "left out, with an image: 1 (" in capsys.readouterr().out


def test_coigs_layouts(tmp_path):
    exam = {"textbox_q_instruction": "I", "textbox_q_context": "", "textbox_question": "Q", "textbox_answer": "A"}
    translated = {"instruction": "x", "output": "y", "trans_instruction": "X", "trans_input": None, "trans_output": "Y"}
    found = written(tmp_path, "coig", [exam, translated, {"instruction": "", "output": "y"}])
    told = {
        row["prompt"][0]["content"]: row["reward_model"]["ground_truth"]["target"] for row in sum(found.values(), [])
    }
    assert told == {"I\nQ": ["A"], "X": ["Y"]}


@pytest.mark.parametrize(
    ("name", "broken", "reason"),
    [
        ("webshaper", {"question": " "}, "no question or no answer"),
        ("webshaper", {"answer": ""}, "no question or no answer"),
        ("hle", {"answer": " "}, "no question or no answer"),
        ("deepmath", {"final_answer": ""}, "no question or no answer"),
        ("gaia", {"Final answer": None}, "no public answer"),
    ],
)
def test_rows_without_a_question_or_an_answer_are_left_out_and_named(tmp_path, capsys, name, broken, reason):
    """A run would refuse the first, and no answer is right for the second."""
    found = written(tmp_path, name, [GENERAL[name], GENERAL[name] | {"question": "Other?", "Question": "?"} | broken])
    assert sum(map(len, found.values())) == 1
    assert f"left out, {reason}: 1 ({tmp_path}/{name}.jsonl:2)" in capsys.readouterr().out


def test_srdd_is_a_table(tmp_path):
    folder = tmp_path / "SRDD" / "data"
    folder.mkdir(parents=True)
    (folder / "check.csv").write_text("something,else\n1,2,more than the header\n")
    (folder / "data_attribute_format.csv").write_text(
        'Name,Description,Category\nTile_Placer,"Tiles, placed.",Board_Game\n'
    )
    with pytest.raises(ValueError, match="check.csv row 1: field 'Name': given no such field among"):
        reasoning.prepare("srdd", tmp_path / "out", folder / "check.csv")
    reasoning.prepare("srdd", tmp_path / "out", tmp_path / "SRDD")
    ((row,),) = [pq.read_table(file).to_pylist() for file in (tmp_path / "out").glob("*.parquet")]
    assert row["reward_model"]["ground_truth"] == {"kind": "software", "target": ["Tiles, placed."]}
    assert "Tile Placer" in row["prompt"][0]["content"] and row["extra_info"]["category"] == "Board_Game"


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        (3.0, "3"),
        (-0.5, "-0.5"),
        (1e21, "1" + "0" * 21),
        (1 / 3, "0.3333333333"),
        pytest.param(10**400, f"{10**400}", id="huge"),
    ],
)
def test_numbers_are_written_out(target, shown):
    assert questions.gsm_hard({"input": "q", "target": target}, "x").target == [shown]


def test_the_split_does_not_depend_on_the_order_and_numbers_are_unique(tmp_path, capsys):
    rows = [{"input": f"q{i}", "target": i} for i in range(200)]
    one, two = written(tmp_path, "gsm_hard", rows), written(tmp_path, "gsm_hard", rows[::-1])
    for split in ("train", "test"):
        assert {r["extra_info"]["question"] for r in one[split]} == {r["extra_info"]["question"] for r in two[split]}
    numbers = [row["extra_info"]["index"] for rows in one.values() for row in rows]
    assert len(set(numbers)) == 200 and 20 < len(one["test"]) < 60
    repeated = written(tmp_path, "gsm_hard", rows[:50] * 2, limit=5)
    assert {split: len(rows) for split, rows in repeated.items()} == {"train": 5, "test": 5}
    assert "50 repeated questions" in capsys.readouterr().out


@pytest.mark.parametrize("limit", ["0", "-3"])
def test_a_limit_that_would_drop_the_last_questions_or_all_is_refused(tmp_path, limit, capsys):
    path = write_jsonl(tmp_path / "gsm_hard.jsonl", [{"input": f"q{i}", "target": i} for i in range(20)])
    out = tmp_path / "out"
    with pytest.raises(SystemExit):
        reasoning.main(["gsm_hard", "--local_dataset_path", str(path), "--output_dir", str(out), "--limit", limit])
    assert f"must be >= 1, given {limit}" in capsys.readouterr().err and not out.exists()


def test_a_folder_tells_the_split_and_other_sets_are_left_alone(tmp_path):
    for split in ("train", "test"):
        write_jsonl(tmp_path / "math" / f"gsm8k_{split}.jsonl", [ROWS["gsm8k"] | {"question": split}])
    write_jsonl(tmp_path / "math" / "gsm_hard.jsonl", [ROWS["gsm_hard"]])
    found = reasoning.prepare("gsm8k", tmp_path / "out", tmp_path / "math")
    assert found == {"train.parquet": 1, "test.parquet": 1}
    assert pq.read_table(tmp_path / "out" / "test.parquet")["extra_info"][0].as_py()["question"] == "test"


def test_the_folders_of_a_download_tell_the_split_as_the_names_of_files_do(tmp_path):
    """The hub's parquet copy has main/train/0000.parquet and main/test/0000.parquet."""
    for split in ("train", "test"):
        rows = [ROWS["gsm8k"] | {"question": f"{split} {i}"} for i in range(20)]
        write_jsonl(tmp_path / "test" / "main" / split / "0000.jsonl", rows)
    out = tmp_path / "out"
    assert reasoning.prepare("gsm8k", out, tmp_path / "test") == {"train.parquet": 20, "test.parquet": 20}
    for split in ("train", "test"):
        asked = [row["question"] for row in pq.read_table(out / f"{split}.parquet")["extra_info"].to_pylist()]
        assert asked == [f"{split} {i}" for i in range(20)]
    moved = write_jsonl(tmp_path / "test" / "gsm8k.jsonl", [ROWS["gsm8k"] | {"question": f"{i}"} for i in range(20)])
    assert set(reasoning.prepare("gsm8k", out, moved)) == {"train.parquet", "test.parquet"}, "a folder above tells none"


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("gsm8k", {"question": "q", "answer": "5"}, "jsonl:1: field 'answer' has no '####'"),
        ("gsm8k", {"question": "q", "answer": "foo #### "}, "jsonl:1: field 'answer' has no number"),
        ("gsm8k", {"answer": "#### 5"}, "field 'question'"),
        ("gsm_hard", {"input": "q", "target": "5"}, "field 'target': given '5', expected a number"),
        ("gsm_hard", {"input": "q", "target": float("nan")}, "expected a number"),
        ("gsm_hard", {"input": "q", "target": float("inf")}, "expected a number"),
        ("mmlu_pro", {"question": "q", "options": ["a"], "answer": "B"}, "'B', but there are 1 options"),
        ("mmlu_pro", {"question": "q", "answer": "B"}, "field 'options'"),
        ("commongen_hard", {"concepts": []}, "'concepts' is empty"),
    ],
)
def test_bad_rows_are_named(name, row, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        written(tmp_path, name, [row])


def test_a_file_that_an_earlier_run_left_is_named(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train.parquet").write_bytes(b"of another set")
    path = write_jsonl(tmp_path / "hle.jsonl", [GENERAL["hle"]])  # a benchmark, of which nothing trains
    reasoning.main(["hle", "--local_dataset_path", str(path), "--output_dir", str(tmp_path / "out")])
    assert f"left from an earlier run: {tmp_path}/out/train.parquet" in capsys.readouterr().out


def test_nothing_to_read(tmp_path):
    for name, path, message in (
        ("gsm8k", tmp_path / "none.jsonl", "does not exist"),
        ("gsm8k", tmp_path, "holds no"),
        ("commongen_hard", None, "not on the hub. Remedy: --local_dataset_path"),
    ):
        with pytest.raises(ValueError, match=message):
            reasoning.prepare(name, tmp_path / "out", path)


@needs_shared
@pytest.mark.parametrize(
    ("name", "file", "least"),
    [
        ("gsm8k", "math", 8000),
        ("gsm_hard", "math/gsm_hard.jsonl", 1000),
        ("mmlu_pro", "knowledge/mmlu_pro_1400.jsonl", 1000),
        ("commongen_hard", "writing/commongen_hard.jsonl", 150),
    ],
)
def test_real_rows(name, file, least, tmp_path):
    assert sum(reasoning.prepare(name, tmp_path, SHARED / file).values()) > least


def test_files_of_other_spellings_and_none_of_other_sets(tmp_path, capsys):
    folder = tmp_path / "math"
    write_jsonl(folder / "gsmhardv2.jsonl", [ROWS["gsm_hard"]])
    write_jsonl(folder / "svamp.jsonl", [{"input": "another set", "target": 1}])
    assert sum(reasoning.prepare("gsm_hard", tmp_path / "out", folder).values()) == 1
    with pytest.raises(ValueError, match="which files are mmlu_pro cannot be told by their names"):
        write_jsonl(folder / "asdiv.jsonl", [{}])
        reasoning.prepare("mmlu_pro", tmp_path / "out", folder)


def test_another_target_of_the_same_question_is_named(tmp_path, capsys):
    rows = [ROWS["gsm_hard"], ROWS["gsm_hard"], ROWS["gsm_hard"] | {"target": 5}]
    assert sum(map(len, written(tmp_path, "gsm_hard", rows).values())) == 1
    printed = capsys.readouterr().out
    assert "2 repeated questions" in printed and "of them 1 with another target" in printed and "jsonl:3" in printed
