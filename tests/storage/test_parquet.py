"""Data files are written whole, or the row that cannot be is named."""

from __future__ import annotations

import pytest

from verl_ext.storage.parquet import question_row, write_parquet


def test_a_row_with_half_a_surrogate_pair_is_named(tmp_path):
    rows = [question_row("mine", text, {"target": ["a"]}, "qa", "test", 0) for text in ("Who?", "Who \ud83d?")]
    with pytest.raises(ValueError, match=r"q.parquet, row 1: a text has half of a surrogate pair.*Remedy"):
        write_parquet(rows, tmp_path / "q.parquet")
    assert list(tmp_path.iterdir()) == []
