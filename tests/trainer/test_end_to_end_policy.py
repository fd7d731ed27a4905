"""Real training runs with an adapter per agent: on two ranks, with padding rows, killed, evaluated, exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.trainer.running import entries, lasting, run, run_and_kill
from verl_ext.evaluate.__main__ import main
from verl_ext.plugin import package_path

pytestmark = pytest.mark.end_to_end

AGENTS = ("rewriter", "reranker", "answerer")
TINY = package_path("recipe/mhgpo/assets/tiny_model")
# 5 questions x 3 samples x 3 agents = 45 rows: the second rank gets a padding row. π_old is computed by the trainer.
SETTINGS = [
    "mas.policy=per_agent_lora",
    "mas.deterministic=true",
    "data.train_batch_size=5",
    "actor_rollout_ref.rollout.n=3",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "algorithm.rollout_correction.bypass_mode=false",
    "trainer.n_gpus_per_node=2",
    "trainer.total_training_steps=3",
    "trainer.save_freq=1",
    "trainer.test_freq=3",
    "data.val_max_samples=-1",
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """An uninterrupted run of 3 steps."""
    folder = tmp_path_factory.mktemp("per_agent")
    run(folder, *SETTINGS)
    return folder


def actor(folder: Path, step: int) -> Path:
    return folder / "runs" / "mhgpo_tiny" / f"global_step_{step}" / "actor"


def adapters(folder: Path, step: int) -> dict[str, dict[str, torch.Tensor]]:
    place = actor(folder, step) / "adapters"
    return {name: load_file(place / name / "adapter_model.safetensors") for name in AGENTS}


def test_every_agents_adapter_learns_its_own(whole):
    before, after = adapters(whole, 2), adapters(whole, 3)
    for name in AGENTS:
        assert any(not torch.equal(before[name][key], after[name][key]) for key in after[name]), name
        ups = [tensor for key, tensor in after[name].items() if "lora_B" in key]
        assert len(ups) == 4 * 7 and all(tensor.abs().max() > 0 for tensor in ups), "a fresh adapter's are zero"
        for other in set(AGENTS) - {name}:
            assert all(not torch.equal(after[name][key], after[other][key]) for key in after[name]), (name, other)


def test_log_probs_reference_and_update_see_each_row_through_its_adapter(whole):
    steps = [entry["metrics"] for entry in entries(whole) if entry["step"] > 0]
    for metrics in steps:
        assert (metrics["update/rows"], metrics["update/padding_rows"]) == (45, 1)
        # Another adapter's would differ by more than 1e-3 (tests/engine).
        assert metrics["training/rollout_probs_diff_max"] < 1e-4
        assert all(metrics[f"adapters/{name}/grad_norm"] > 0 for name in AGENTS)
        assert metrics["actor/grad_norm"] ** 2 == pytest.approx(
            sum(metrics[f"adapters/{name}/grad_norm"] ** 2 for name in AGENTS), rel=1e-4
        )
    assert steps[0]["actor/kl_loss"] == 0, "adapters begin as nothing, and the reference is the base"
    assert steps[-1]["actor/kl_loss"] > 1e-4


def learned(entry: dict[str, Any]) -> dict[str, Any]:
    """Of training: a run that goes on validates before its first step, which the other one did not."""
    return {name: value for name, value in lasting(entry).items() if not name.startswith("val")}


def test_killed_and_started_again_it_gives_the_same_adapters(whole, tmp_path):
    run_and_kill(tmp_path, *SETTINGS, after_step=2)
    assert not actor(tmp_path, 3).exists()
    run(tmp_path, *SETTINGS)
    for again, once in zip(map(learned, entries(tmp_path)), map(learned, entries(whole)), strict=True):
        assert all(again[name] == once[name] for name in again.keys() & once.keys())
    assert again == once and len(once) > 60, "the last step; of one that was cut short only what was known then"
    resumed, uninterrupted = adapters(tmp_path, 3), adapters(whole, 3)
    for name in AGENTS:
        assert all(torch.equal(resumed[name][key], uninterrupted[name][key]) for key in resumed[name])


def evaluated(folder: Path, output: str, *overrides: str) -> dict[str, float]:
    assert main(["+recipe=mhgpo_tiny", f"evaluate.output=runs/{output}", *overrides]) == 0
    (source,) = json.loads((folder / "runs" / output / "results.json").read_text())["data"].values()
    return {name: source["metrics"][name]["mean"] for name in ("em", "f1", "acc")}


def test_an_evaluation_of_the_checkpoint_gives_what_training_validated(whole, monkeypatch):
    """Found by itself; over the base as it was shipped, so the base is what it was."""
    monkeypatch.chdir(whole)
    validated = entries(whole)[-1]["metrics"]
    expected = {name: validated[f"val/system/{name}"] for name in ("em", "f1", "acc")}
    found = evaluated(whole, "played", "evaluate.model=runs/mhgpo_tiny/global_step_3")
    assert found == pytest.approx(expected, abs=1e-6)
    untrained = evaluated(whole, "untrained", "mas.policy=per_agent_lora")
    assert untrained != found


def test_another_systems_checkpoint_is_refused(whole, monkeypatch, capsys):
    monkeypatch.chdir(whole)
    arguments = ["+recipe=single_tiny", "evaluate.output=runs/other", "evaluate.model=runs/mhgpo_tiny/global_step_3"]
    assert main(arguments) == 2
    assert "has adapters of rewriter, reranker, answerer, and none of single" in capsys.readouterr().err


def test_one_agents_adapter_is_exported_and_merged_with_peft(whole, tmp_path):
    """The commands of docs/per_agent_lora.md, and that the merged model is what the agent was."""
    base = AutoModelForCausalLM.from_pretrained(TINY)
    model = PeftModel.from_pretrained(base, str(actor(whole, 3) / "adapters" / "answerer"))
    tokens = AutoTokenizer.from_pretrained(TINY)("answer: who?", return_tensors="pt").input_ids
    with torch.no_grad():
        adapted = model(tokens).logits
        with model.disable_adapter():
            plain = model(tokens).logits
    model.merge_and_unload().save_pretrained(tmp_path / "answerer")
    with torch.no_grad():
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "answerer")(tokens).logits
    assert torch.allclose(merged, adapted, atol=1e-4) and (adapted - plain).abs().max() > 1e-2


def test_sequences_and_a_role_that_does_not_train(tmp_path):
    """DeepAgent: rows of several calls, and an auxiliary role, which the base answers."""
    run(
        tmp_path,
        "mas.policy=per_agent_lora",
        "trainer.total_training_steps=1",
        "trainer.save_freq=1",
        "data.train_batch_size=4",
        "data.val_max_samples=4",
        "actor_rollout_ref.rollout.n=4",
        recipe="toolpo_tiny",
    )
    metrics: dict[str, Any] = entries(tmp_path, "toolpo_tiny")[-1]["metrics"]
    assert metrics["adapters/agent/grad_norm"] > 0 and metrics["agents/auxiliary/calls"] > 0
    assert metrics["agents/auxiliary/failed"] == metrics["agents/agent/failed"] == 0
    record = tmp_path / "runs" / "toolpo_tiny" / "global_step_1" / "actor" / "adapters.json"
    assert json.loads(record.read_text())["names"] == ["agent"]
