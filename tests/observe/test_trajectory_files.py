"""Files of the trajectory log: bounded, readable after a kill, and without what a resumed run does again."""

from __future__ import annotations

import logging

import pytest
from omegaconf import OmegaConf

from verl_ext.observe.trajectory_files import (
    EVALUATION_FILE,
    FOLDER,
    ROWS,
    VALIDATION_FOLDER,
    TrajectoryLog,
    folder_name,
    log_files,
    read_records,
)
from verl_ext.storage.jsonl import encode_line

PARTS = {"trajectories": [], "tools": [], "calls": []}


def line(step, phase="train", number=0, text="x", calls=()):
    question = {"number": number, "text": text}
    return {"phase": phase, "step": step, "question": question, **PARTS, "calls": list(calls)}


def steps(folder):
    return [(record["phase"], record["step"]) for record in read_records(folder)]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_records_come_back_as_they_were(tmp_path):
    log = TrajectoryLog(tmp_path, 10_000, 2)
    hostile = '</script>\u2028\u2029\r\x0b\x1c\x85\n\x00\ud800"'
    written = [line(1, text=hostile), line(2, text="é🙂")]
    log.write(written)
    assert list(read_records(tmp_path)) == written
    assert (tmp_path / "000001.jsonl").read_bytes().count(b"\n") == 2


def test_files_and_their_sizes_are_bounded_and_the_oldest_go_first(tmp_path):
    log = TrajectoryLog(tmp_path, 1000, 3)
    for step in range(1, 41):
        log.write([line(step, number=n, text="y" * 80) for n in range(3)])  # some 600 bytes: one block a file
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3000
    assert names(tmp_path) == ["000038.jsonl", "000039.jsonl", "000040.jsonl"]
    assert steps(tmp_path) == [("train", step) for step in (38, 39, 40) for _ in range(3)], "blocks stay whole"


def test_the_rows_of_steps_that_leave_the_log_go_with_them(tmp_path):
    """They would grow without bound in a long run."""
    log = TrajectoryLog(tmp_path, 1000, 3)
    for step in range(1, 41):
        rows = tmp_path / ROWS.format(step=step)
        rows.parent.mkdir(exist_ok=True)
        rows.write_bytes(b"")
        log.write([line(step, number=n, text="y" * 80) for n in range(3)])
    kept = [f"step_{step:06d}.json.gz" for step in (37, 38, 39, 40)]
    assert names(rows.parent) == kept, "the file that went last may have had but a part of step 37"


def test_a_record_larger_than_a_file_is_split_into_its_question_and_its_calls(tmp_path):
    long = line(1, calls=[{"n": n, "output": "z" * 300} for n in range(5)]) | {"trajectories": [{"number": 0}]}
    TrajectoryLog(tmp_path, 1000, 9).write([long])
    first, *rest = read_records(tmp_path)
    assert first["trajectories"] == [{"number": 0}] and not any(part["trajectories"] for part in rest)
    assert [call["n"] for part in rest for call in part["calls"]] == [0, 1, 2, 3, 4]


def test_a_block_larger_than_a_file_is_spread_and_a_line_larger_than_a_file_is_left_out(tmp_path, caplog):
    log = TrajectoryLog(tmp_path, 1000, 9)
    with caplog.at_level(logging.WARNING):
        log.write([line(step, text="z" * 350) for step in range(1, 6)] + [line(6, text="z" * 1000), line(7)])
    assert steps(tmp_path) == [("train", step) for step in (1, 2, 3, 4, 5, 7)] and len(names(tmp_path)) == 3
    assert "1 records are longer than mas.trajectory_log.file_mb (0.001 MB)" in caplog.text
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())


def test_numbers_go_on_past_six_digits(tmp_path):
    (tmp_path / "999999.jsonl").write_bytes(encode_line(line(1)) * 2)
    log = TrajectoryLog(tmp_path, 200, 9)
    log.write([line(2)])
    log.write([line(3)])
    assert [path.name for path in log_files(tmp_path)] == ["999999.jsonl", "1000000.jsonl", "1000001.jsonl"]


def test_a_line_cut_short_is_skipped_and_goes_when_the_run_goes_on(tmp_path):
    log = TrajectoryLog(tmp_path, 10_000, 2)
    log.write([line(1), line(2)])
    path = tmp_path / "000001.jsonl"
    whole = path.read_bytes()
    for cut in range(len(whole) - 1, whole.index(b"\n"), -1):
        path.write_bytes(whole[:cut])
        assert steps(tmp_path) == [("train", 1)], cut
    log.start(2)
    log.write([line(3)])
    assert steps(tmp_path) == [("train", 1), ("train", 3)]
    assert path.read_bytes().count(b"\n") == 2


@pytest.mark.parametrize("junk", [b"null\n", b"[1]\n", b'{"phase":"val"}\n', b"\xff\xfe\n", b"\n"])
def test_lines_that_are_no_records_are_skipped(tmp_path, junk):
    path = tmp_path / "000001.jsonl"
    path.write_bytes(junk + encode_line(line(1)) + junk)
    assert steps(path) == [("train", 1)]


def test_a_resumed_run_drops_the_rows_of_the_steps_that_it_does_again(tmp_path):
    (tmp_path / "rows").mkdir()
    for name in (*(ROWS.format(step=step) for step in (1, 2, 3, 1_000_000)), "rows/step_mine.json.gz"):
        (tmp_path / name).write_text("rows")
    TrajectoryLog(tmp_path, 1000, 9).start(2)
    left = {"step_000001.json.gz", "step_000002.json.gz", "step_mine.json.gz"}
    assert {path.name for path in (tmp_path / "rows").iterdir()} == left


def test_a_resumed_run_drops_what_it_does_again(tmp_path):
    def written():
        log = TrajectoryLog(tmp_path, 250, 99)
        log.start(0)
        for step, phase in ((0, "val"), (1, "train"), (2, "train"), (2, "val"), (3, "train"), (4, "train"), (4, "val")):
            log.write([line(step, phase)])
        return log

    log = written()
    assert len(names(tmp_path)) > 2
    log.start(2, validates_again=True)
    assert steps(tmp_path) == [("val", 0), ("train", 1), ("train", 2)], "validation at 2 is made again"
    log = written()
    log.start(2, validates_again=False)
    assert steps(tmp_path) == [("val", 0), ("train", 1), ("train", 2), ("val", 2)]
    (tmp_path / "notes.txt").write_text("mine")
    log.start(0)
    assert names(tmp_path) == ["notes.txt"], "from scratch, and nothing but the log's own files is touched"


def test_the_log_is_found_from_the_runs_folder_its_own_or_a_file(tmp_path):
    (tmp_path / "answers").mkdir()
    (tmp_path / "answers" / EVALUATION_FILE).write_bytes(encode_line(line(None, "eval")) + b'{"cut')
    assert steps(tmp_path / "answers") == [("eval", None)]
    TrajectoryLog(tmp_path / VALIDATION_FOLDER, 1000, 1).write([line(9)])
    assert steps(tmp_path) == [("train", 9)], "an evaluation's, where there is no other"
    TrajectoryLog(tmp_path / FOLDER, 1000, 1).write([line(1)])
    for place in (tmp_path, tmp_path / FOLDER, tmp_path / FOLDER / "000001.jsonl"):
        assert steps(place) == [("train", 1)]
    with pytest.raises(
        FileNotFoundError, match=r"holds no trajectory log.*000001.jsonl.*Remedy.*train_questions above 0"
    ):
        log_files(tmp_path / "elsewhere")


@pytest.mark.parametrize("val_only,name", [(True, VALIDATION_FOLDER), (False, FOLDER)])
def test_an_evaluation_has_a_folder_of_its_own(val_only, name):
    assert folder_name(OmegaConf.create({"trainer": {"val_only": val_only}})) == name
