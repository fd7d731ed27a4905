"""LoRA behind a recipe: what trains is the adapter, and the reference model is the policy without it."""

from __future__ import annotations

import json

import pytest

from tests.end_to_end.running import run, saved, steps


@pytest.mark.slow
def test_lora_trains_the_adapter_against_its_base(tmp_path):
    run(tmp_path, "+base=lora", "trainer.total_training_steps=2", "actor_rollout_ref.actor.optim.lr=1e-3")
    first, second = steps(tmp_path)
    assert first["actor/kl_loss"] == 0, "an adapter begins as nothing"
    assert first["actor/grad_norm"] > 0
    # The engine has the adapter, too: it differs by bf16's rounding (0.004); a KL of 1e-3 is a difference of 0.05.
    assert second["training/rollout_probs_diff_max"] < 0.02 and second["actor/kl_loss"] > 5e-4
    actor = tmp_path / "runs" / "mhgpo_tiny" / "global_step_2" / "actor"
    assert json.loads((actor / "lora_train_meta.json").read_text())["r"] == 32
    state = saved(tmp_path, 2, "actor/optim_world_size_1_rank_0.pt")["state"]
    assert len(state) == 4 * 7 * 2, "Adam knows A and B of the 7 linear layers of each of 4 blocks, nothing else"
