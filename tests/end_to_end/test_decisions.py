"""Puppeteer: the policy decides which agents act next, up to two of them side by side; only its adapter moves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.end_to_end.running import last_metrics, records, run, run_again_from, steps, weights
from verl_ext.plugin import package_path

RECIPE = "puppeteer_tiny"
SETTINGS = ["mas.deterministic=true", "mas.advantage.baseline=mean", "mas.advantage.momentum=0.5"]
SETTINGS += ["mas.workflow.topology=graph", "mas.workflow.width=2"]
SETTINGS += ["trainer.total_training_steps=3", "trainer.test_freq=3", "mas.prepare.output_dir=data"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Three steps in graphs."""
    folder = tmp_path_factory.mktemp("decisions")
    run(folder, *SETTINGS, recipe=RECIPE)
    return folder


def test_the_policy_learns_among_the_names_it_may_choose(whole):
    kept = None
    for metrics in steps(whole, RECIPE):
        returned = metrics["agents/orchestrator/reward"]
        kept = returned if kept is None else 0.5 * kept + 0.5 * returned
        # π_old is what the engine sampled with, among the names; the trainer's differs by rounding, as it is among
        # them, too. Among all tokens it would be another distribution.
        assert abs(metrics["actor/ppo_kl"]) < 1e-5 and metrics["actor/grad_norm"] > 0
        assert metrics["decisions/orchestrator/entropy"] > 0.1
        shares = [value for name, value in metrics.items() if name.startswith("choices/orchestrator/")]
        assert sum(shares) == pytest.approx(1.0) and len(shares) > 4
        # One row per decision.
        decisions = metrics["decisions/orchestrator/length"] * metrics["sampling/trajectories"]
        assert metrics["update/rows"] == pytest.approx(decisions)
        assert metrics["update/weight_max"] == pytest.approx(metrics["update/rows"] / metrics["sampling/trajectories"])
        # A return is the reward minus a price.
        assert returned < metrics["system/reward"]
    assert state(whole) == {"mean_return": pytest.approx(kept)}


def test_puppets_say_after_training_what_the_untouched_base_says(whole):
    """Nothing but the orchestrator's adapter is trained and saved, and no puppet is generated with it."""
    place = whole / "runs" / RECIPE / "global_step_3" / "actor"
    assert [folder.name for folder in (place / "adapters").iterdir()] == ["orchestrator"]
    learned = load_file(place / "adapters" / "orchestrator" / "adapter_model.safetensors")
    assert all(tensor.abs().max() > 0 for name, tensor in learned.items() if "lora_B" in name)
    assert all(".lora_" in name for name in weights(whole, 3, RECIPE))
    base = package_path("recipe/puppeteer/assets/tiny_model")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    _, calls = records(whole, RECIPE)
    said = {
        call["prompt"][-1]["content"]: (call["prompt"], call["output"])
        for call in calls
        if (call["phase"], call["step"]) == ("val", 3) and call["agent"] != "orchestrator"
    }
    assert len(said) > 10
    for messages, output in list(said.values())[:12]:
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        made = model.generate(**ids, max_new_tokens=24, do_sample=False)
        assert tokenizer.decode(made[0, ids["input_ids"].shape[1] :], skip_special_tokens=True) == output


def state(folder: Path) -> dict[str, float]:
    """The algorithm's state after the last step."""
    return json.loads((folder / "runs" / RECIPE / "global_step_3" / "algorithm.json").read_text())


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_the_algorithms_state(whole, tmp_path):
    run_again_from(2, whole, tmp_path, *SETTINGS, recipe=RECIPE)
    assert state(tmp_path) == state(whole)
    assert last_metrics(tmp_path, RECIPE) == last_metrics(whole, RECIPE)
