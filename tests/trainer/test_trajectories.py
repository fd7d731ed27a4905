"""The trainer's side of the trajectory log: options, which steps are logged, and whose advantage is whose."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from omegaconf import OmegaConf

from tests.trainer.test_config import configured
from verl_ext.observe.trajectories import QuestionTrace
from verl_ext.observe.trajectory_files import read_records
from verl_ext.trainer.config import read_mas_config
from verl_ext.trainer.sections import TrajectoryLogSection
from verl_ext.trainer.state import trajectory_recorder
from verl_ext.trainer.state.trajectory_recorder import TrajectoryRecorder


def test_options_reach_the_record():
    assert read_mas_config(configured(trajectory_log={"every": 3, "file_mb": 1})).trajectory_log.file_mb == 1.0


class Manager:
    """Hands out one trace per uid, and remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def take_traces(self, uids, count):
        self.asked.append((uids, count))
        return [traced(uid) for uid in (["v"] if uids is None else uids)[:count]]


def traced(uid):
    calls = [{"output": f"{uid}{n}", "place": place} for n, place in enumerate([(0, 0), (0, 1), (1, 1), None])]
    return QuestionTrace(uid, 0, {"index": 1, "source": "s", "text": "t", "gold": None}, [], [], calls)


def recorder(tmp_path, **options):
    trainer = {"default_local_dir": str(tmp_path), "val_before_train": True}
    made = TrajectoryRecorder(OmegaConf.create({"trainer": trainer}), TrajectoryLogSection(**options))
    made.start(0, 7)
    return made


def test_the_first_the_last_and_every_nth_step_are_logged(tmp_path):
    log, manager = recorder(tmp_path, every=3, train_questions=2), Manager()
    for step in range(1, 8):
        log.collect(step, ["a", "b", "c"], manager)
    assert [count for _, count in manager.asked] == [2, 0, 2, 0, 0, 2, 2], "the others are told to drop what they hold"
    log.collect(8, ["a"], manager, last=True)
    assert manager.asked[-1][1] == 2, "the budget ends the run before its time"


def test_switched_off_it_asks_for_nothing_and_writes_nothing(tmp_path):
    log, manager = recorder(tmp_path, train_questions=0, val_questions=0), Manager()
    log.collect(1, ["a"], manager)
    log.write_training(1, SimpleNamespace(tags=[], keys=[], partition_id="train"), torch.ones(0))
    log.discard_validation(manager)
    log.write_validation(1, manager)
    assert manager.asked == [] and not list(tmp_path.rglob("*.jsonl"))


def columns(advantages, masks):
    """Stands for `kv_batch_get`: the columns of rows, nested; all but the mask are the advantages."""
    floats = torch.nested.nested_tensor(advantages, layout=torch.jagged)
    mask = torch.nested.nested_tensor([torch.as_tensor(mask).long() for mask in masks], layout=torch.jagged)
    return lambda select_fields, **_: dict.fromkeys(select_fields, floats) | {"response_mask": mask}


def test_every_call_gets_the_advantages_of_its_own_row(tmp_path, monkeypatch):
    """Rows in any order, one of another question, one of padding, a call without a row, one of no trajectory's end."""

    def tag(uid, number, position, group, **given):
        calls = [[position, 0, 9]]
        return {"question": uid, "order": ["s", 1, number, position], "group": group, "calls": calls, **given}

    batch = SimpleNamespace(
        keys=["k0", "k1", "k2", "k3"],
        tags=[
            tag("b", 0, 0, "b/x/0"),
            tag("a", 0, 1, "a/y/0"),
            tag("a", 0, 0, "*batch/shuffled/3"),
            tag("a", 1, 1, "a/y/0", is_padding=True),
        ],
        partition_id="train",
    )
    stored = {"k1": torch.tensor([0.1, -0.2]), "k2": torch.tensor([0.1, 0.1, 0.1])}

    def get(keys, partition_id, select_fields):
        assert (sorted(keys), partition_id) == (["k1", "k2"], "train")
        masks = [torch.ones(len(stored[key])) for key in keys]
        return columns([stored[key] for key in keys], masks)(select_fields)

    monkeypatch.setattr(trajectory_recorder.tq, "kv_batch_get", get)
    log = recorder(tmp_path, train_questions=1)
    log.collect(1, ["a"], Manager())
    log.write_training(1, batch, torch.ones(4))
    log.write_validation(1, Manager())
    lines = {(one["phase"], call["output"]): call for one in read_records(tmp_path) for call in one["calls"]}
    assert lines["train", "a0"]["advantage"] == 0.1 and lines["train", "a0"]["group"] == "*batch/shuffled/3"
    assert lines["train", "a1"]["advantage"] == [0.1, -0.2] and lines["train", "a1"]["group"] == "y/0"
    assert [lines["train", f"a{n}"]["trained"] for n in range(4)] == [True, True, False, False]
    assert lines["val", "v0"]["trained"] is False and lines["val", "v0"]["advantage"] is None


def test_calls_of_one_sequence_share_its_row(tmp_path, monkeypatch):
    """Two outputs of two tokens with an observation of three between them: a0 is the first, a1 the second."""
    tags = [{"question": "a", "order": ["s", 1, 0, 0], "group": "a/x/0", "calls": [[0, 0, 2], [1, 5, 7]]}]
    values = columns([torch.tensor([0.5, 0.25, 0, 0, 0, 1.0, -1.0])], [[1, 1, 0, 0, 0, 1, 1]])
    monkeypatch.setattr(trajectory_recorder.tq, "kv_batch_get", values)
    log = recorder(tmp_path, train_questions=1)
    log.collect(1, ["a"], Manager())
    log.write_training(1, SimpleNamespace(keys=["k"], tags=tags, partition_id="train"), torch.ones(1))
    lines = {call["output"]: call for record in read_records(tmp_path) for call in record["calls"]}
    assert lines["a0"]["advantage"] == [0.5, 0.25] and lines["a1"]["advantage"] == [1.0, -1.0]
    assert lines["a0"]["group"] == lines["a1"]["group"] == "x/0" and not lines["a2"]["trained"]


def test_tokens_that_do_not_train_have_no_advantage(tmp_path, monkeypatch):
    """a0 is a decision of four tokens, of which one had a choice; no token of a1 had one. Advantage 0 is a number."""
    tags = [
        {"question": "a", "order": ["s", 1, 0, 0], "group": "a/x/0", "calls": [[0, 0, 4]]},
        {"question": "a", "order": ["s", 1, 0, 1], "group": "a/y/0", "calls": [[1, 0, 2]]},
        {"question": "a", "order": ["s", 1, 1, 1], "group": "a/y/0", "calls": [[1, 0, 2]]},
    ]
    advantages = [torch.tensor([0, 0.8, 0, 0]), torch.tensor([0.0, 0]), torch.tensor([0.0, 0])]
    values = columns(advantages, [[0, 1, 0, 0], [0, 0], [1, 1]])
    monkeypatch.setattr(trajectory_recorder.tq, "kv_batch_get", values)
    log = recorder(tmp_path, train_questions=1)
    log.collect(1, ["a"], Manager())
    log.write_training(1, SimpleNamespace(keys=["k", "l", "m"], tags=tags, partition_id="train"), torch.ones(3))
    calls = [call for record in read_records(tmp_path) for call in record["calls"]]
    assert [call["advantage"] for call in calls] == [[None, 0.8, None, None], None, 0.0, None]
    assert [call["trained"] for call in calls] == [True, True, True, False]
