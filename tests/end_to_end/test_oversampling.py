"""`mas.sampling.oversample`: stragglers are cut, come again, and are neither lost nor doubled, also after kill -9.

A run of its own: no other cuts questions, or saves questions under the synchronous mode. It is resumed with rollout
workers in processes of their own.
"""

from __future__ import annotations

import pytest

from tests.end_to_end.running import entries, records, run, run_and_kill
from tests.end_to_end.trajectory_log import check_tokens
from verl_ext.storage.jsonl import read_log

QUESTIONS, STEPS = 8, 5
# Four steps an epoch: the fifth is of the second one.
SETTINGS = [
    "mas.sampling.oversample=1.25",
    "mas.workflow._target_=tests.end_to_end.straggling.Stragglers",
    "mas.tools.search._target_=tests.end_to_end.straggling.search",
    "mas.limits.max_calls=1000000",
    "data.train_max_samples=32",
    f"data.train_batch_size={QUESTIONS}",
    f"trainer.total_training_steps={STEPS}",
    "trainer.save_freq=1",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
    f"mas.trajectory_log.train_questions={QUESTIONS + 2}",
    "mas.trajectory_log.every=1",
]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_stragglers_are_cut_and_come_again_after_a_kill_too(tmp_path):
    run_and_kill(tmp_path, *SETTINGS, after_step=2)
    run(tmp_path, *SETTINGS, "actor_rollout_ref.rollout.agent.num_workers=2")
    log = {entry["step"]: entry["metrics"] for entry in entries(tmp_path)}
    assert tuple(log) == tuple(range(1, STEPS + 1))
    # The last step of the epoch begins what is left of it, and waits for all of it.
    assert [metrics["sampling/cut_questions"] for metrics in log.values()] == [2, 2, 2, 0, 2]
    assert log[1]["sampling/cut_again"] == 0 and log[2]["sampling/cut_again"] == 2, "the stragglers twice"
    for step, metrics in log.items():
        assert metrics["sampling/questions"] == QUESTIONS and metrics["update/rows"] == 12 * QUESTIONS
        assert metrics["sampling/dropped_questions"] == 0 and metrics["sampling/failed_trajectories"] == 0
        assert metrics["doctor/version_lag_max"] == 0, f"step {step} trains on what the last weights sampled"
        cut = [metrics[f"sampling/cut_{what}"] for what in ("trajectories", "seconds", "tokens")]
        assert min(cut) > 0 if metrics["sampling/cut_questions"] else not any(cut)
    tokens = sum(metrics["sampling/generated_tokens"] for metrics in log.values())
    assert log[STEPS]["budget/generated_tokens"] == tokens, "those of cut questions count"

    questions, calls = records(tmp_path)
    trained = {step: [q["question"]["index"] for q in questions if q["step"] == step] for step in log}
    assert all(len(indices) == QUESTIONS for indices in trained.values())
    epoch = [index for step in range(1, STEPS) for index in trained[step]]
    assert len(epoch) == len(set(epoch)) == 32, "each question once"
    check_tokens(calls)

    begun = [line["index"] for line in read_log(tmp_path / "begun.jsonl")]
    stragglers = list(dict.fromkeys(begun))[:2]
    assert all(begun.count(index) >= 4 for index in stragglers)
    assert not set(stragglers) & {*trained[1], *trained[2]}
    ends = list(read_log(tmp_path / "cut.jsonl"))
    assert all(end["active"] == end["waiting"] == 0 for end in ends), "the engine sleeps without requests"
    assert all(end["questions"] == QUESTIONS for end in ends), "no row is left but those that train"
    assert ends[0]["aborted"] > 0 and len(list(read_log(tmp_path / "tools.jsonl"))) >= 2
