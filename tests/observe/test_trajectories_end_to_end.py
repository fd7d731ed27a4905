"""The trajectory log of real training runs: it says what was trained, also after a kill and across processes."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean, stdev

import pytest

from tests.trainer.running import entries, run, run_and_kill
from verl_ext.observe.trajectory_files import read_records
from verl_ext.observe.viewer import main

pytestmark = pytest.mark.end_to_end


def log_of(folder, experiment="mhgpo_tiny"):
    """(records, their calls, each with the phase, step and question of its record)."""
    records = list(read_records(folder / "runs" / experiment))
    heads = [{name: record[name] for name in ("phase", "step", "question")} for record in records]
    return records, [head | call for head, record in zip(heads, records, strict=True) for call in record["calls"]]


def by_group(calls):
    groups = defaultdict(list)
    for call in calls:
        if call["trained"]:
            groups[call["step"], call["question"]["number"], call["group"]].append(call)
    return groups


def check_tokens(calls):
    for call in calls:
        assert "".join(call["tokens"]) == call["output"]
        assert call["tokens"], call["id"]


def check_advantages(members_of, groups):
    """Eq. 5 from the logged rewards gives the logged advantages."""
    assert len(members_of) == groups
    for members in members_of.values():
        rewards = [call["rewards"]["total"] for call in members]
        spread = stdev(rewards)
        for call in members:
            expected = (call["rewards"]["total"] - fmean(rewards)) / (spread + 1e-6) if spread else 0.0
            assert len(members) == 4 and call["advantage"] == pytest.approx(expected, abs=1e-4)
    assert any(call["advantage"] for members in members_of.values() for call in members)


def test_a_run_that_was_killed_and_went_on(tmp_path):
    """Node-wise Monte Carlo in the trainer's process; killed after step 3, it goes on from the checkpoint of step 2."""
    options = ["mas.sampling.strategy=nmc", "trainer.total_training_steps=4"]
    run_and_kill(tmp_path, *options, after_step=3)
    assert ("train", 3) in {(line["phase"], line["step"]) for line in log_of(tmp_path)[0]}
    assert "verl_ext.observe.viewer runs/mhgpo_tiny" in run(tmp_path, *options)
    questions, calls = log_of(tmp_path)
    seen = [(line["phase"], line["step"], line["question"]["number"]) for line in questions]
    trained = [("train", step, n) for step in (1, 2, 3, 4) for n in range(4)]
    assert sorted(seen) == sorted(trained + [("val", step, n) for step in (0, 2, 4) for n in range(8)]), "each once"
    check_tokens(calls)
    train = [call for call in calls if call["phase"] == "train"]
    names = {(call["step"], call["question"]["number"], call["id"]) for call in train}
    assert len(names) == len(train) == 4 * 4 * 21 and sum(call["trained"] for call in train) == 4 * 4 * 12
    check_advantages(by_group(train), groups=4 * 4 * 3)
    for call in train:
        assert len(call["parents"]) == min(call["depth"], 1) and call["versions"] == [call["step"] - 1] * 2
    shared = [tool for line in questions for tool in line["tools"] if len(tool["trajectories"]) > 1]
    assert len(shared) == 16 and all(tool["after"] == ["0 | rewriter.0"] for tool in shared)
    validated = {step: set() for step in (0, 2, 4)}
    for line in questions:
        if line["phase"] == "val":
            validated[line["step"]].add(line["question"]["index"])
    assert validated[0] == validated[2] == validated[4], "the same questions each time"
    assert main([str(tmp_path / "runs" / "mhgpo_tiny")]) == 0


def test_partial_rollouts_in_a_process_of_their_own(tmp_path):
    """Asynchronous training with remote workers: rows are trained in other steps than they were sampled in."""
    run(
        tmp_path,
        "trainer.v1.trainer_mode=mas_colocate_async",
        "actor_rollout_ref.rollout.agent.num_workers=2",
        "trainer.total_training_steps=3",
        "mas.trajectory_log.file_mb=0.1",
        "mas.trajectory_log.files=100",
    )
    questions, calls = log_of(tmp_path)
    assert sorted((q["step"], q["question"]["number"]) for q in questions if q["phase"] == "train") == [
        (step, n) for step in (1, 2, 3) for n in range(4)
    ]
    check_tokens(calls)
    train = [call for call in calls if call["phase"] == "train"]
    assert len(train) == 3 * 4 * 12 and all(call["trained"] for call in train)
    check_advantages(by_group(train), groups=3 * 4 * 3)
    sizes = [path.stat().st_size for path in (tmp_path / "runs" / "mhgpo_tiny" / "trajectories").iterdir()]
    assert len(sizes) > 1 and max(sizes) <= 100_000
    logged = {entry["step"]: entry["metrics"] for entry in entries(tmp_path)}
    for step in (1, 2, 3):
        assert {call["step"] for call in train if call["step"] == step} and logged[step]["update/rows"] == 96


def test_gae_gives_every_token_its_own_advantage(tmp_path):
    run(tmp_path, "trainer.total_training_steps=1", recipe="mappo_tiny")
    _, calls = log_of(tmp_path, "mappo_tiny")
    train = [call for call in calls if call["phase"] == "train"]
    several = [call for call in train if isinstance(call["advantage"], list)]
    assert train and several
    for call in several:
        assert len(call["advantage"]) == len(call["tokens"])
