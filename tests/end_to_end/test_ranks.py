"""Two ranks and two mini-batches of shuffled groups, and an evaluation of the sharded checkpoint that they leave."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.end_to_end.running import entries, run, steps
from verl_ext.evaluate.__main__ import main
from verl_ext.evaluate.checkpoint import find_model, full_weights
from verl_ext.plugin import package_path

pytestmark = pytest.mark.slow
CHECKPOINT = "runs/mhgpo_tiny/global_step_2"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    output = run(
        folder,
        "trainer.n_gpus_per_node=2",
        "trainer.total_training_steps=2",
        "data.val_max_samples=-1",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "mas.sampling.strategy=rr",
        "mas.sampling.rr.regroup=shuffle",
        "mas.sampling.rr.probabilities=[0.2,0.4,0.4]",
        # The trainer computes π_old again, as on GPUs.
        "algorithm.rollout_correction.bypass_mode=false",
        # Sampling has a process of its own, as on GPUs.
        "actor_rollout_ref.rollout.agent.num_workers=1",
    )
    assert "Done." in output
    return folder


def test_round_robin_in_two_mini_batches(trained):
    for metrics in steps(trained):
        assert metrics["update/optimiser_steps"] == 2
        assert metrics["update/padding_rows"] <= 3
        assert metrics["sampling/agent_calls"] == metrics["sampling/agent_calls_formula"]
        assert metrics["update/rows"] + metrics["groups/dropped_rows"] == metrics["sampling/agent_calls"]
        assert metrics["update/weight_max"] > metrics["update/weight_min"] > 0
        assert metrics["actor/grad_norm"] > 0
        # Every group that the advantages were computed in has G members, the shuffled singletons' as well.
        assert metrics["groups/size"] == 4 and metrics["groups/single"] == 0


@pytest.mark.parametrize("step", [0, 2])
def test_an_evaluation_gives_what_training_validates(trained, monkeypatch, step):
    monkeypatch.chdir(trained)
    model = [f"evaluate.model={CHECKPOINT}"] if step else []
    validated = next(entry["metrics"] for entry in entries(trained) if entry["step"] == step)
    assert main(["+recipe=mhgpo_tiny", f"evaluate.output=runs/evaluated_{step}", *model]) == 0
    (source,) = json.loads(Path(f"runs/evaluated_{step}/results.json").read_text())["data"].values()
    assert source["answered"] == source["questions"]
    for name in ("em", "f1", "acc"):
        assert source["metrics"][name]["mean"] == pytest.approx(validated[f"val/system/{name}"], abs=1e-6)


def test_shards_are_put_together_without_rounding(trained):
    found = find_model(str(trained / CHECKPOINT))
    assert found.shards and len(list(found.shards.glob("model_world_size_2_rank_*.pt"))) == 2
    start = AutoModelForCausalLM.from_pretrained(package_path("recipe/mhgpo/assets/tiny_model")).state_dict()
    whole = full_weights(found)
    assert {name: tuple(tensor.shape) for name, tensor in whole.items() if name in start} == {
        name: tuple(start[name].shape) for name in whole
    }
    moved = torch.cat([(whole[name] - start[name]).flatten() for name in whole])
    assert all(tensor.dtype == torch.float32 for tensor in whole.values())
    assert 0 < moved.abs().max() < 0.01  # four optimiser steps of lr 2e-4 away, and nearer than bfloat16 could tell


def test_a_checkpoint_that_lacks_a_shard_is_refused(trained, tmp_path, monkeypatch, capsys):
    shutil.copytree(trained / CHECKPOINT, tmp_path / "global_step_2")
    (tmp_path / "global_step_2" / "actor" / "model_world_size_2_rank_1.pt").unlink()
    monkeypatch.chdir(trained)
    broken = ["+recipe=mhgpo_tiny", f"evaluate.model={tmp_path}/global_step_2", "evaluate.output=runs/broken"]
    assert main(broken) == 2
    assert "cannot be read: FileNotFoundError" in capsys.readouterr().err
