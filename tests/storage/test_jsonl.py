"""Rows are read strictly, logs leniently."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import RayError, RayTaskError

from verl_ext.storage.jsonl import LineError, append, cut_torn_line, parse_line, read_log, read_rows, write_rows
from verl_ext.tools.http.client import Refused
from verl_ext.tools.rest.reading import ServerFailed

TEXTS = st.dictionaries(st.text(max_size=5), st.text(max_size=20) | st.integers() | st.none(), max_size=3)


def test_rows_come_with_their_place_and_blank_lines_are_skipped(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n\n  \r\n{"a": "\xc3\xa9"}')
    expected = [(f"{path}:1", {"a": 1}), (f"{path}:4", {"a": "é"})]
    assert list(read_rows(path)) == expected
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert [row for _, row in read_rows(packed)] == [row for _, row in expected]


def test_rows_with_half_a_character_are_written_and_read(tmp_path):
    """JSON's escapes can hold a lone surrogate, as in texts that were cut in the middle of an emoji."""
    rows = [{"a": "\ud83d é 🧮"}, {"\udfff": ["\\ud83d"]}]
    assert write_rows(tmp_path / "a.jsonl", rows) == 2
    assert [row for _, row in read_rows(tmp_path / "a.jsonl")] == rows
    assert "é 🧮" in (tmp_path / "a.jsonl").read_text("utf-8")


@pytest.mark.parametrize(
    "error",
    [
        LineError(Path("tools.jsonl"), 3, "not valid JSON"),
        Refused("the server refused the request", 401, "no token"),
        ServerFailed("the server failed", 500, "start it"),
    ],
)
def test_errors_of_a_worker_reach_the_trainer_with_their_message(error):
    """Ray pickles what a worker raises. An error that cannot be made again loses its message on the way."""
    raised = RayTaskError("worker", "", error).to_bytes()
    arrived = RayError.from_bytes(raised).cause
    assert (type(arrived), str(arrived), vars(arrived)) == (type(error), str(error), vars(error))


BAD_LINES = {
    '{"a": 1': "not valid JSON",
    "[1]": "given list [1], expected an object with a",
    "null": "given NoneType None",
    "[" * 100_000: "not valid JSON",
    '{"a": "\xff"}': "not valid JSON",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=range(len(BAD_LINES)))
def test_a_bad_row_names_file_and_line(line, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 0}\n' + line.encode("latin-1"))
    with pytest.raises(LineError) as raised:
        list(read_rows(path, "an object with a"))
    assert str(raised.value).startswith(f"{path}:2: {BAD_LINES[line]}")
    assert (raised.value.path, raised.value.line) == (path, 2)


def test_a_missing_or_cut_file_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="does not exist, or is no file"):
        list(read_rows(tmp_path))
    whole = gzip.compress(b'{"a": 1}\n' * 1000)
    (tmp_path / "a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="cannot be read to its end"):
        list(read_rows(tmp_path / "a.jsonl.gz"))


@given(rows=st.lists(TEXTS, max_size=4), cut=st.integers(0, 200))
def test_a_log_cut_anywhere_gives_its_whole_lines_and_grows_on(rows, cut, tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    append(path, rows)
    content = path.read_bytes()[:cut]
    path.write_bytes(content)
    whole = rows[: content.count(b"\n")]
    assert list(read_log(path)) == whole
    append(path, [{"after": 1}])
    assert list(read_log(path)) == [*whole, {"after": 1}]


def test_a_long_torn_line_is_cut_off(tmp_path):
    path = tmp_path / "a"
    for whole in (b"", b'{"a": 1}\n'):
        path.write_bytes(whole + b"x" * 200_000)
        cut_torn_line(path)
        assert path.read_bytes() == whole


def test_damaged_lines_of_a_log_are_skipped_and_a_missing_log_is_empty(tmp_path):
    assert list(read_log(tmp_path / "none")) == []
    (tmp_path / "a").write_bytes(b'{"a": NaN}\nnonsense\n[1]\n\xff\n' + b"[" * 100_000 + b'\n{"b": 2}\n{"c"')
    assert list(read_log(tmp_path / "a")) == [{"a": None}, {"b": 2}]
    assert parse_line(b'{"a": 1}') is None


def test_what_is_no_json_is_not_appended(tmp_path):
    with pytest.raises(ValueError):
        append(tmp_path / "a", [{"ok": 1}, {"a": float("nan")}])
    assert not (tmp_path / "a").read_bytes()
    append(tmp_path / "a", [{"text": "two\nlines\u2028"}])
    assert [json.loads(line) for line in (tmp_path / "a").read_text().splitlines()] == [{"text": "two\nlines\u2028"}]
