"""Finds in vLLM's worker the tensors that serve: the same weights as were sent, fused and cut as vLLM keeps them.

One GPU per engine and ordinary weights: every weight is found, where it is, as a part of vLLM's tensor. Weights that
vLLM keeps in another form (cut over several GPUs, quantised, fused experts) are not found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from verl_ext.engine.fingerprints import owner_of

Shape = tuple[int, ...]
# What a worker says of a weight: it serves; it arrived, and vLLM keeps it in a form that is not compared; or neither.
SERVED, ARRIVED, DIFFERS = "served", "arrived", "differs"


class ServedBase:
    """The weights of vLLM's model, by the names and shapes of the Hugging Face model.

    Args:
        model: vLLM's; its layers may be wrapped for LoRA.
    """

    def __init__(self, model: torch.nn.Module):
        found = model.named_parameters(remove_duplicate=False)  # a tied lm_head has a name of its own
        self.parameters = {name.replace(".base_layer.", "."): parameter for name, parameter in found}
        packed: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", None) or {}
        self.fused = {part: (fused, parts) for fused, parts in packed.items() for part in parts if len(parts) > 1}
        self.renamed = _renaming(model)

    def dtype(self, name: str) -> torch.dtype | None:
        """The type in which a weight serves; None: it is in no tensor of vLLM's that we know."""
        tensor = self._tensor(name)[0]
        return None if tensor is None else tensor.dtype

    def find(self, name: str, shapes: Mapping[str, Shape]) -> torch.Tensor | None:
        """The part of vLLM's tensor that is this weight; None: vLLM keeps it in another form.

        Args:
            shapes: of all weights that were sent.
        """
        tensor, before = self._tensor(name)
        if tensor is None or not tensor.dim() or tensor.shape[1:] != shapes[name][1:]:
            return None if tensor is None or tensor.shape != shapes[name] else tensor
        rows = [shapes[part][0] if part in shapes else -1 for part in before]
        if -1 in rows or (before and sum(rows) != len(tensor)):
            return None
        start = sum(rows[: before.index(name)]) if before else 0
        # vLLM pads the rows of embeddings.
        return tensor[start : start + shapes[name][0]] if start + shapes[name][0] <= len(tensor) else None

    def _tensor(self, name: str) -> tuple[torch.Tensor | None, list[str]]:
        """vLLM's tensor with this weight in it, and the names of all weights in it if it is fused."""
        own = self.renamed(name.replace(".base_layer.", "."))
        if own in self.parameters:
            return self.parameters[own], []
        place, _, kind = own.rpartition(".")
        place, _, layer = place.rpartition(".")
        if layer not in self.fused:
            return None, []
        fused, parts = self.fused[layer]
        return self.parameters.get(f"{place}.{fused}.{kind}"), [name.replace(f".{layer}.", f".{p}.") for p in parts]


class ServedAdapter:
    """One LoRA in the slots that vLLM's next request uses, by the names of peft's tensors.

    Args:
        manager: vLLM's LoRAModelManager.
        number: of the LoRA (lora_int_id).
    """

    def __init__(self, manager: Any, number: int):
        self.modules, self.renamed = manager.modules, _renaming(manager.model)
        self.slot = manager.lora_index_to_id.index(number) if number in manager.lora_index_to_id else None
        self.fused = {
            part: (name, place) for name, parts in manager.packed_modules.items() for place, part in enumerate(parts)
        }

    def stack(self, name: str) -> torch.Tensor | None:
        """(slots, 1, rows, columns): what vLLM keeps of all LoRAs for this tensor, `<layer>.lora_<A or B>.weight`."""
        layer, side = self.renamed(name).removesuffix(".weight").rsplit(".lora_", 1)
        layer, place = (layer, 0) if layer in self.modules else self.fused.get(layer, (layer, 0))
        if layer not in self.modules:
            return None
        module = self.modules[layer]
        return (module.lora_a_stacked if side == "A" else module.lora_b_stacked)[place]

    def find(self, name: str, shape: Shape) -> torch.Tensor | None:
        """The tensor in its slot; None: vLLM has cut it over several GPUs."""
        stack = self.stack(name)
        if stack is None or self.slot is None or stack.shape[2] < shape[0] or stack.shape[3] < shape[1]:
            return None
        return stack[self.slot, 0, : shape[0], : shape[1]]


def _renaming(model: torch.nn.Module) -> Any:
    """From a name of the Hugging Face model to vLLM's name of it, for models whose layers vLLM calls otherwise."""
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    if mapper is None:
        return str
    if hasattr(mapper, "get_unstacked_mapper"):  # newer ones also put weights together
        mapper = mapper.get_unstacked_mapper()
    return lambda name: (mapper.apply_list([name]) or [name])[0]


def check_held(sent: Mapping[str, int], held: Mapping[str, tuple[int, str]], step: int | None) -> None:
    """Compare the weights that were sent with what a worker of vLLM got and serves.

    Args:
        sent: their fingerprints.
        held: `WeightWorker.weights_held`.
        step: version of the weights.

    Raises:
        RuntimeError: they differ; names adapters and tensors.
    """
    wrong = {}
    for name, value in sent.items():
        arrived, state = held.get(name, (None, DIFFERS))
        if arrived is None:
            wrong[name] = "did not arrive"
        elif arrived != value:
            wrong[name] = "arrived changed"
        elif state == DIFFERS:
            wrong[name] = "is not what serves"
    if wrong:
        owners = sorted({owner_of(name) or "the base" for name in wrong})
        first, what = next(iter(wrong.items()))
        raise RuntimeError(
            f"after step {step} vLLM does not hold the weights that the trainer sent: {', '.join(owners)} "
            f"({len(wrong)} of {len(sent)} tensors; the first: {first} {what})"
        )
