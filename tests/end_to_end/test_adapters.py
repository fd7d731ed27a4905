"""An adapter per agent, on two ranks, with padding rows: learned, resumed, evaluated, exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.end_to_end.running import entries, lasting, run, run_again_from, steps
from verl_ext.evaluate.__main__ import main
from verl_ext.plugin import package_path

AGENTS = ("rewriter", "reranker", "answerer")
CHECKPOINT = "runs/mhgpo_tiny/global_step_3"
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
    first, _, last = steps(whole)
    for metrics in steps(whole):
        assert (metrics["update/rows"], metrics["update/padding_rows"]) == (45, 1)
        # Another adapter's would differ by more than 1e-3 (tests/engine).
        assert metrics["training/rollout_probs_diff_max"] < 1e-4
        assert all(metrics[f"adapters/{name}/grad_norm"] > 0 for name in AGENTS)
        assert metrics["actor/grad_norm"] ** 2 == pytest.approx(
            sum(metrics[f"adapters/{name}/grad_norm"] ** 2 for name in AGENTS), rel=1e-4
        )
    assert first["actor/kl_loss"] == 0, "adapters begin as nothing, and the reference is the base"
    assert last["actor/kl_loss"] > 1e-4


@pytest.mark.slow
def test_a_resumed_run_gives_the_same_adapters(whole, tmp_path):
    run_again_from(2, whole, tmp_path, *SETTINGS)
    assert len(learned(tmp_path)) > 60 and learned(tmp_path) == learned(whole)
    resumed, uninterrupted = adapters(tmp_path, 3), adapters(whole, 3)
    for name in AGENTS:
        assert all(torch.equal(resumed[name][key], uninterrupted[name][key]) for key in resumed[name])


def learned(folder: Path) -> dict[str, Any]:
    """Metrics of training at the last step."""
    return {name: value for name, value in lasting(entries(folder)[-1]).items() if not name.startswith("val")}


def test_an_evaluation_of_the_checkpoint_gives_what_training_validated(whole, monkeypatch):
    """The adapters are found in the checkpoint. The base is the shipped one, so training did not change it."""
    monkeypatch.chdir(whole)
    assert main(["+recipe=mhgpo_tiny", "evaluate.output=runs/played", f"evaluate.model={CHECKPOINT}"]) == 0
    (source,) = json.loads(Path("runs/played/results.json").read_text())["data"].values()
    first, *_, last = (entry["metrics"] for entry in entries(whole))
    names = ("em", "f1", "acc")
    assert [source["metrics"][name]["mean"] for name in names] == pytest.approx(
        [last[f"val/system/{name}"] for name in names], abs=1e-6
    )
    assert [last[f"val/system/{name}"] for name in names] != [first[f"val/system/{name}"] for name in names]


def test_another_systems_checkpoint_is_refused(whole, monkeypatch, capsys):
    monkeypatch.chdir(whole)
    arguments = ["+recipe=single_tiny", "evaluate.output=runs/other", f"evaluate.model={CHECKPOINT}"]
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
