"""Right answers of rows: read as they are meant, and refused where no answer could ever be right."""

from __future__ import annotations

import numpy as np
import pytest

from verl_ext.mas import Task
from verl_ext.rewards.calls import Invocation, gold_path
from verl_ext.rewards.truth import targets_of


@pytest.mark.parametrize(
    ("truth", "answers"),
    [
        ({"target": "Tova"}, ["Tova"]),
        ({"target": ["Tova", "T. Berg"]}, ["Tova", "T. Berg"]),
        ({"target": 42}, ["42"]),
        ({"target": np.array(["a", "b"])}, ["a", "b"]),
        ({"target": 5.0}, ["5"]),  # as files have integers of a column with gaps; "5.0" is 50 without its point
        ({"target": [np.float32(-3), np.float64(2.5), 1e22, 10**400]}, ["-3", "2.5", f"{10**22}", f"{10**400}"]),
        ({"target": []}, []),
        ({"path": "[]"}, []),
        (None, []),
    ],
)
def test_one_answer_or_several(truth, answers):
    assert targets_of(truth, "row 3") == answers


@pytest.mark.parametrize(
    "truth",
    [
        "Tova",
        ["Tova"],
        5,
        {"target": [None]},
        {"target": [" "]},
        {"target": {"a": "b"}},
        {"target": float("nan")},
        {"target": ["a", np.float32("inf")]},
        {"target": True},
    ],
)
def test_what_is_no_answer(truth):
    with pytest.raises(ValueError, match="of row 3 must be"):
        targets_of(truth, "row 3")


@pytest.mark.parametrize("path", ['"film"', '{"name": "film"}', "film", "7", "[" * 5000, 7, {"name": "film"}])
def test_a_path_that_is_no_list(path):
    with pytest.raises(ValueError, match="path of row 3 must be a list"):
        gold_path(Task("q", {"path": path}, index=3))


def test_a_call_whose_arguments_are_none():
    with pytest.raises(ValueError, match="must list names or calls"):
        gold_path(Task("q", {"path": '[{"name": "film", "arguments": "x"}]'}))
    assert gold_path(Task("q", {"path": ["film"]})) == [Invocation("film", None)]
    assert gold_path(Task("q", {"path": "null"})) == []
