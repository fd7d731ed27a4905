"""What the terminal shows of a fine-tuning. How its log is kept in parts and read: tests/test_sft.py."""

import json

from verl_ext.observe import sft_log
from verl_ext.observe.sft_log import StepLines


def trained(lines, log, steps):
    """An epoch: as verl does, log each step before the next batch is taken."""
    seen = []
    for step in lines(steps):
        seen.append(step)
        with log.open("a") as file:
            file.write(json.dumps({"step": step, "data": {"train/loss": 1 / step if step < 20 else None}}) + "\n")
            file.write(json.dumps({"step": step, "data": {"val/loss": 9.0}}) + "\n")
    return seen


def test_a_line_counts_all_steps_and_tells_the_time_left_of_all(tmp_path, capsys, monkeypatch):
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(sft_log.time, "monotonic", lambda: float(next(clock)))
    log = tmp_path / "sft.jsonl"
    lines = StepLines(log, 20)
    assert trained(lines, log, range(13, 17)) == [13, 14, 15, 16], "of a training that goes on"
    assert trained(lines, log, range(17, 21)) == [17, 18, 19, 20]
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == ["step 13/20  loss 0.077", "step 14/20  loss 0.071  1 min 00 s left"]
    assert shown[-1] == "step 20/20  loss nan  0 min 00 s left" and len(shown) == 8


def test_lines_are_rare_and_of_one_rank(tmp_path, capsys, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(sft_log.time, "monotonic", lambda: float(next(clock)))
    log = tmp_path / "sft.jsonl"
    assert trained(StepLines(log, 12), log, range(1, 13)) == list(range(1, 13))
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["1/12", "6/12", "11/12"]
    other = StepLines(log, 12)
    assert list(other(range(3), disable=True)) == [0, 1, 2] and not capsys.readouterr().out
