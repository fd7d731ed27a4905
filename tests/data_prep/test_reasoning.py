"""The reasoning sets: rows as they lie on the hub, cuts that stay, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from verl_ext.data_prep import reasoning
from verl_ext.recipe.puppeteer.scoring import score

ROWS = {
    "gsm8k": {"question": "How many?", "answer": "48/2 = <<48/2=24>>24\n#### 1,072"},
    "gsm_hard": {"input": "How many?", "target": -9867630.0},
    "mmlu_pro": {"question": "Which?", "options": ["a", "N/A", "c"], "answer": "C", "answer_index": 2},
    "commongen_hard": {"concepts": ["dog", "run"]},
}
RIGHT = {"gsm8k": "1072", "gsm_hard": "-9,867,630", "mmlu_pro": "(C)", "commongen_hard": "Dogs running."}


def written(tmp_path, name, rows, file=None, **options):
    path = tmp_path / (file or f"{name}.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reasoning.prepare(name, tmp_path / "out", options.pop("path", path), **options)
    return {p.stem: pq.read_table(p).to_pylist() for p in (tmp_path / "out").glob("*.parquet")}


@pytest.mark.parametrize("name", list(ROWS))
def test_a_row_and_its_right_answer(name, tmp_path):
    (rows,) = written(tmp_path, name, [ROWS[name]]).values()
    (row,) = rows
    assert row["data_source"] == name and row["extra_info"]["index"] == 0
    assert score(name, RIGHT[name], row["reward_model"]["ground_truth"]) == 1.0
    assert score(name, "Q 5", row["reward_model"]["ground_truth"]) == 0.0


def test_what_is_asked():
    assert reasoning.mmlu_pro(ROWS["mmlu_pro"], "x").question == (
        "Which?\n(A) a\n(C) c\nAnswer with the letter of the right option."
    )
    assert "dog, run" in reasoning.commongen_hard(ROWS["commongen_hard"], "x").question


@pytest.mark.parametrize(
    ("target", "shown"), [(3.0, "3"), (-0.5, "-0.5"), (1e21, "1" + "0" * 21), (1 / 3, "0.3333333333"), (7, "7")]
)
def test_numbers_are_written_out(target, shown):
    assert reasoning.gsm_hard({"input": "q", "target": target}, "x").target == [shown]


def test_the_cut_does_not_depend_on_the_order_and_numbers_are_unique(tmp_path):
    rows = [{"input": f"q{i}", "target": i} for i in range(200)]
    one = written(tmp_path, "gsm_hard", rows)
    two = written(tmp_path, "gsm_hard", rows[::-1])
    for split in ("train", "test"):
        assert {r["extra_info"]["question"] for r in one[split]} == {r["extra_info"]["question"] for r in two[split]}
    numbers = [row["extra_info"]["index"] for rows in one.values() for row in rows]
    assert len(set(numbers)) == 200 and 20 < len(one["test"]) < 60


def test_a_folder_tells_the_split_and_other_sets_are_left_alone(tmp_path):
    folder = tmp_path / "math"
    folder.mkdir()
    for split in ("train", "test"):
        (folder / f"gsm8k_{split}.jsonl").write_text(json.dumps(ROWS["gsm8k"] | {"question": split}))
    (folder / "gsm_hard.jsonl").write_text(json.dumps(ROWS["gsm_hard"]))
    found = reasoning.prepare("gsm8k", tmp_path / "out", folder)
    assert found == {"train.parquet": 1, "test.parquet": 1}
    assert pq.read_table(tmp_path / "out" / "test.parquet")["extra_info"][0].as_py()["question"] == "test"


def test_questions_that_come_again_and_a_limit(tmp_path, capsys):
    rows = [{"input": f"q{i % 50}", "target": 1} for i in range(100)]
    found = written(tmp_path, "gsm_hard", rows, limit=5)
    assert {split: len(rows) for split, rows in found.items()} == {"train": 5, "test": 5}
    assert "50 questions" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("gsm8k", {"question": "q", "answer": "5"}, "jsonl:1: field 'answer' has no '####'"),
        ("gsm8k", {"answer": "#### 5"}, "field 'question'"),
        ("gsm_hard", {"input": "q", "target": "5"}, "field 'target': given '5', expected a number"),
        ("gsm_hard", {"input": "q", "target": float("nan")}, "expected a number"),
        ("mmlu_pro", {"question": "q", "options": ["a"], "answer": "B"}, "'B', but there are 1 options"),
        ("mmlu_pro", {"question": "q", "answer": "B"}, "field 'options'"),
        ("commongen_hard", {"concepts": []}, "'concepts' is empty"),
    ],
)
def test_bad_rows_are_named(name, row, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        written(tmp_path, name, [row])


def test_nothing_to_read(tmp_path):
    for path, message in ((tmp_path / "none.jsonl", "does not exist"), (tmp_path, "holds no")):
        with pytest.raises(ValueError, match=message):
            reasoning.prepare("gsm8k", tmp_path / "out", path)
    with pytest.raises(ValueError, match="not on the hub. Remedy: --local_dataset_path"):
        reasoning.prepare("commongen_hard", tmp_path / "out")


def test_as_a_command(tmp_path):
    (tmp_path / "c.jsonl").write_text(json.dumps(ROWS["commongen_hard"]))
    script = Path(reasoning.__file__).resolve()
    command = [sys.executable, str(script), "commongen_hard", "--output_dir", str(tmp_path / "o")]
    done = subprocess.run([*command, "--local_dataset_path", str(tmp_path / "c.jsonl")], capture_output=True, text=True)
    assert done.returncode == 0 and "parquet: 1 rows" in done.stdout
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: commongen_hard is not on the hub")


SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"
FILES = {
    "gsm8k": ("math", 8000),
    "gsm_hard": ("math/gsm_hard.jsonl", 1000),
    "mmlu_pro": ("knowledge/mmlu_pro_1400.jsonl", 1000),
    "commongen_hard": ("writing/commongen_hard.jsonl", 150),
}


@pytest.mark.parametrize("name", list(FILES))
def test_real_sets(name, tmp_path):
    file, least = FILES[name]
    if not (SHARED / file).exists():
        pytest.skip(f"{SHARED / file} is not here")
    assert sum(reasoning.prepare(name, tmp_path, SHARED / file).values()) > least
