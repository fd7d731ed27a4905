"""mix.py: shares by weight, rows that differ in their fields, and numbers that a run accepts."""

from collections import Counter

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_ext.data_prep import mix
from verl_ext.storage.parquet import question_row, rows_schema, write_parquet
from verl_ext.trainer.preflight.data import check_files


def data_set(path, name, count, truth, **extra):
    rows = [question_row(name, f"{name} {i}?", truth, "x", "train", i, f"{name}-{i}", **extra) for i in range(count)]
    kinds = [{key: [str] if isinstance(value, list) else str for key, value in of.items()} for of in (truth, extra)]
    write_parquet(rows, path, rows_schema(*kinds))
    return path


@pytest.fixture
def sets(tmp_path):
    tools = data_set(tmp_path / "tools.parquet", "toolbench", 40, {"target": [], "path": "[]"}, tools=["a"])
    return tools, data_set(tmp_path / "qa.parquet", "hotpotqa", 10, {"target": ["x"]}, level="easy")


def mixed(tmp_path, *arguments):
    status = mix.main([*map(str, arguments), "--output", str(tmp_path / "out" / "train.parquet")])
    return status, pq.read_table(tmp_path / "out" / "train.parquet").to_pylist() if not status else []


def test_shares_by_weight_without_repetition(tmp_path, sets, capsys):
    status, rows = mixed(tmp_path, f"{sets[0]}:3", f"{sets[1]}:1")
    assert status == 0 and Counter(row["data_source"] for row in rows) == {"toolbench": 30, "hotpotqa": 10}
    assert len({row["extra_info"]["id"] for row in rows}) == 40
    assert check_files([str(tmp_path / "out" / "train.parquet")]) == 40
    assert [row["extra_info"]["index"] for row in rows] == list(range(40))
    of = {row["data_source"]: row for row in rows}
    assert of["toolbench"]["extra_info"]["tools"] == ["a"] and of["hotpotqa"]["extra_info"]["tools"] is None
    assert of["hotpotqa"]["reward_model"]["ground_truth"] == {"target": ["x"], "path": None}
    assert {row["data_source"] for row in rows[:10]} == set(of), "the order is mixed, too"
    assert "30 rows (75.0%) of the 40 of " in capsys.readouterr().out
    assert mixed(tmp_path, f"{sets[0]}:3", f"{sets[1]}:1")[1] == rows, "the same seed gives the same file"
    assert mixed(tmp_path, f"{sets[0]}:3", f"{sets[1]}:1", "--seed", "1")[1] != rows


def test_a_small_data_set_is_repeated_in_whole_passes(tmp_path, sets, capsys):
    _, rows = mixed(tmp_path, f"{sets[0]}:0.5", f"{sets[1]}:0.5", "--rows", 50)
    times = Counter(row["extra_info"]["id"] for row in rows if row["data_source"] == "hotpotqa")
    assert sum(times.values()) == 25 and set(times.values()) == {2, 3}
    assert check_files([str(tmp_path / "out" / "train.parquet")]) == 50, "repeated rows have numbers of their own"
    assert "qa.parquet, 2.5 times over" in capsys.readouterr().out


@given(st.lists(st.tuples(st.floats(0.01, 10), st.integers(1, 500)), min_size=1, max_size=5), st.integers(1, 999))
def test_the_sizes_add_up_and_keep_the_shares(parts, rows):
    weights, have = zip(*parts, strict=True)
    found = mix.sizes(weights, have, rows)
    assert sum(found) == rows
    assert all(abs(n - rows * w / sum(weights)) < 1 + 1e-6 for n, w in zip(found, weights, strict=True))
    assert all(n <= most for n, most in zip(mix.sizes(weights, have, None), have, strict=True))


def test_what_cannot_be_mixed_is_named(tmp_path, sets, capsys):
    assert mixed(tmp_path, f"{tmp_path / 'none.parquet'}:1")[0] == 2
    assert "none.parquet cannot be read as parquet" in capsys.readouterr().err
    assert mixed(tmp_path, f"{sets[0]}:1", "--rows", 0)[0] == 2 and "--rows must be" in capsys.readouterr().err
    for wrong in (str(sets[0]), f"{sets[0]}:x", f"{sets[0]}:0", ":1"):
        with pytest.raises(SystemExit):
            mixed(tmp_path, wrong)
        assert "expected FILE:WEIGHT" in capsys.readouterr().err
    for number, extra in enumerate(({"index": "7"}, {"id": "7"}, "7")):
        other = tmp_path / f"other{number}.parquet"
        write_parquet([{"data_source": "other", "extra_info": extra}], other)
        assert mixed(tmp_path, f"{other}:1")[0] == 2
        assert f"other{number}.parquet: extra_info has no index that is a whole number" in capsys.readouterr().err


def test_a_row_without_extra_info_gets_a_number_too(tmp_path):
    some = tmp_path / "some.parquet"
    write_parquet([{"data_source": "some", "extra_info": {"index": 0}}, {"data_source": "some"}], some)
    status, rows = mixed(tmp_path, f"{some}:1")
    assert status == 0 and [row["extra_info"]["index"] for row in rows] == [0, 1]
