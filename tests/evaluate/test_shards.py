"""Reading the shards of a checkpoint that somebody else may have made: loading must not run code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from transformers import AutoModelForCausalLM

from verl_ext.evaluate.checkpoint import Model, full_weights
from verl_ext.plugin import package_path

TINY = package_path("recipe/mhgpo/assets/tiny_model")


class RunsCode:
    """A value that makes a file when it is loaded."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def checkpoint(folder, *shards):
    """A checkpoint of so many ranks."""
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": len(shards)}))
    for rank, shard in enumerate(shards):
        torch.save(shard, folder / f"model_world_size_{len(shards)}_rank_{rank}.pt")
    return Model(TINY, folder)


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",))
    dist.destroy_process_group()


def test_tensors_are_read_distributed_or_not(tmp_path, mesh):
    rows = torch.arange(6.0).view(3, 2)
    sharded = DTensor.from_local(rows, mesh, [Shard(0)])
    whole = full_weights(checkpoint(tmp_path, {"a": sharded, "b": torch.tensor(7, dtype=torch.bfloat16)}))
    assert torch.equal(whole["a"], rows) and whole["b"] == 7 and whole["b"].dtype == torch.bfloat16


def test_a_shard_that_would_run_code_is_refused(tmp_path):
    made = tmp_path / "made"
    model = checkpoint(tmp_path, {"a": torch.zeros(2), "b": RunsCode(made)})
    with pytest.raises(ValueError, match="holds more than tensors, and loading it could run code.*model_merger merge"):
        full_weights(model)
    assert not made.exists()


def test_a_lora_adapter_is_merged_as_peft_merges_it(tmp_path):
    base = AutoModelForCausalLM.from_pretrained(TINY)
    adapted = get_peft_model(base, LoraConfig(r=4, lora_alpha=12, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:  # peft begins with zeros, which add nothing
            torch.nn.init.normal_(parameter, std=0.05)
    model = checkpoint(tmp_path, dict(adapted.state_dict()))
    (tmp_path / "lora_train_meta.json").write_text(json.dumps({"r": 4, "lora_alpha": 12, "task_type": "CAUSAL_LM"}))
    found, wanted = full_weights(model), adapted.merge_and_unload().state_dict()
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)


def test_an_adapter_without_its_rank_is_refused(tmp_path):
    model = checkpoint(tmp_path, {"base_model.model.a.lora_A.default.weight": torch.zeros(2, 2)})
    with pytest.raises(ValueError, match="lora_train_meta.json does not say rank and alpha.*merge it with peft"):
        full_weights(model)
