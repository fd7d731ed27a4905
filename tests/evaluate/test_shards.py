"""Reading the shards of a checkpoint that somebody else may have made: loading must not run code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

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
