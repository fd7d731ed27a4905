"""After an update the engine holds what the trainer sent; a tensor that differs in one bit ends the run."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from verl_ext.engine.fingerprints import fingerprints
from verl_ext.engine.hf.replica import ServerAdapter
from verl_ext.engine.lora.adapters import AdapterOptions
from verl_ext.engine.lora.served_adapters import ServedAdapters


def tensors():
    torch.manual_seed(0)
    return {"a/x.lora_A.weight": torch.randn(3, 5000), "b/x.lora_A.weight": torch.randn(3, 5000)}


@pytest.mark.parametrize("place", [0, 4096, 9999, 14999])
def test_one_bit_changes_the_fingerprint_of_its_adapter_only(place):
    before = fingerprints(tensors())
    after = tensors()
    after["b/x.lora_A.weight"].view(torch.int32).flatten()[place] ^= 1
    found = fingerprints(after)
    assert found["a"] == before["a"] and found["b"] != before["b"]


def test_parts_that_change_places_and_names_that_change_tensors_are_noticed():
    mixed = tensors()
    mixed["b/x.lora_A.weight"] = mixed["b/x.lora_A.weight"].flip(0)
    assert fingerprints(mixed)["b"] != fingerprints(tensors())["b"]
    one = fingerprints({"x": torch.ones(4), "y": torch.zeros(4)})
    two = fingerprints({"x": torch.zeros(4), "y": torch.ones(4)})
    assert list(one) == [""] and one != fingerprints({"x": torch.ones(4)})
    assert one == fingerprints({"y": torch.zeros(4), "x": torch.ones(4)}), "whatever the order"
    assert two != one


def check(held):
    """A trainer that has sent `tensors()` in float32 to a server in bfloat16 that holds `held`."""

    class Method:
        async def remote(self, names):
            tensors = {name: held[name].bfloat16() for name in names}
            return dict.fromkeys(names, torch.bfloat16), fingerprints(tensors)

    adapter = ServerAdapter.__new__(ServerAdapter)
    adapter._server = SimpleNamespace(fingerprints=Method())
    asyncio.run(adapter._check_held(tensors(), 7))


def test_an_engine_that_holds_something_else_ends_the_run():
    check(tensors())
    stale = tensors()
    stale["b/x.lora_A.weight"] = torch.zeros(3, 5000)
    with pytest.raises(RuntimeError, match="after step 7 the rollout engine does not hold .* trainer sent: b$"):
        check(stale)


def test_the_engine_tells_the_adapters_that_its_rows_use():
    model = nn.ModuleDict({"layer": nn.Linear(6, 4, bias=False)})
    options = AdapterOptions(names=("a", "b"), rank=2, alpha=4)
    served, sent = ServedAdapters(model, options), {}
    for name in "ab":
        sent[f"{name}/layer.lora_A.weight"] = torch.randn(2, 6)
        sent[f"{name}/layer.lora_B.weight"] = torch.randn(4, 2)
    served.load(sent)
    assert fingerprints(served.held(list(sent))) == fingerprints(sent)
