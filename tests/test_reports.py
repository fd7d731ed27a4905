from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from verl_ext.reports import machine, markdown, processor


def test_hostile_cells_stay_in_their_cells():
    assert markdown(["a", "b"], [["x|y\nz", "1"]]) == ["| a      | b |", "|--------|---|", "| x\\|y z | 1 |"]


def test_numbers_stand_to_the_right():
    assert markdown(["name", "n"], [["a", "1"], ["b", "10"]], words=1) == [
        "| name |  n |",
        "|------|---:|",
        "| a    |  1 |",
        "| b    | 10 |",
    ]


@given(st.lists(st.lists(st.text(), min_size=3, max_size=3)), st.one_of(st.none(), st.integers(0, 3)))
def test_every_line_is_as_long_as_the_others_and_has_as_many_cells(rows, words):
    lines = markdown(["one", "two", "three"], rows, words)
    assert len({len(line) for line in lines}) == 1 and len(lines) == len(rows) + 2
    assert {line.replace("\\|", "").count("|") for line in lines} == {4}


def test_the_machine_is_told_with_its_processor():
    assert machine().startswith(processor()) and " cores, " in machine()
