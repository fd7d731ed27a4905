"""MAPPO: a critic beside the actor, and an advantage for every token."""

from __future__ import annotations

from tests.end_to_end.running import records, run, steps


def test_mappo_trains_a_shared_critic(tmp_path):
    run(tmp_path, "trainer.total_training_steps=2", recipe="mappo_tiny")
    for metrics in steps(tmp_path, "mappo_tiny"):
        assert metrics["critic/grad_norm"] > 0 and metrics["actor/grad_norm"] > 0
        assert metrics["update/rows"] == 24
        assert metrics["update/weight_max"] == metrics["update/weight_min"] == 1
    _, calls = records(tmp_path, "mappo_tiny")
    train = [call for call in calls if call["phase"] == "train"]
    several = [call for call in train if isinstance(call["advantage"], list)]
    assert train and several
    for call in several:
        assert len(call["advantage"]) == len(call["tokens"])
