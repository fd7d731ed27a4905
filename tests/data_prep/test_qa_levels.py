"""qa.py: difficulty and kind of a question, and test sets by level."""

from collections import Counter

from tests.data_prep.shared import write_jsonl
from tests.data_prep.test_qa import HUB, ids, prepare, run, variants


def test_level_and_type_are_kept_and_a_test_set_has_as_many_of_each_level(tmp_path, capsys):
    levels = ["easy", "medium", "hard"] * 5
    rows = [row | {"level": level, "type": "bridge"} for row, level in zip(variants(HUB, 15), levels, strict=True)]
    file = write_jsonl(tmp_path / "train.jsonl", rows)
    train, test, _ = prepare("hotpotqa", file, tmp_path / "out", "--split", "train", "--per_level", "2")
    assert Counter(row["extra_info"]["level"] for row in test) == dict.fromkeys(levels, 2)
    assert {row["data_source"] for row in test} == {"hotpotqa_easy", "hotpotqa_medium", "hotpotqa_hard"}
    assert len(train) == 9 and {row["data_source"] for row in train} == {"hotpotqa"}
    assert {row["extra_info"]["type"] for row in train} == {"bridge"} and not {*ids(test)} & {*ids(train)}
    train, test, _ = prepare("hotpotqa", file, tmp_path / "easy", "--levels", "easy")
    assert {row["extra_info"]["level"] for row in train + test} == {"easy"}
    refused = {
        "'medium': 5": ["--levels", "eazy"],
        "5 rows of level 'easy'": ["--per_level", "6"],
        "--val_size would do nothing": ["--per_level", "2", "--val_size", "3"],
    }
    for message, options in refused.items():
        assert run("hotpotqa", file, tmp_path / "out", *options) == 2 and message in capsys.readouterr().err
