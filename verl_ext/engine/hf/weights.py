"""Weights on their way to the engine: they fit before anything is copied, and are the sender's afterwards."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import torch

# Values in a part of a tensor; within a part their order does not matter to a fingerprint.
PART = 4096


def fingerprints(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """A fingerprint of the bits of these tensors, for each adapter ("" for names without one: see adapters.wire_name).

    About as fast as memory is read. Equal tensors of one type have equal fingerprints on every device.
    """
    found: dict[str, int] = {}
    for name, tensor in tensors.items():
        kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
        bits = tensor.detach().contiguous().view(kind).flatten()
        whole = len(bits) // PART * PART
        sums = torch.cat([bits[:whole].view(-1, PART).sum(1), bits[whole:].sum()[None]])
        places = torch.arange(1, len(sums) + 1, device=sums.device)
        total = int((sums * places).sum()) ^ zlib.crc32(name.encode())
        owner = name.split("/", 1)[0] if "/" in name else ""
        found[owner] = (found.get(owner, 0) + total) & 0xFFFFFFFFFFFFFFFF
    return found


def _listed(names: list[str], limit: int = 8) -> str:
    return ", ".join(names[:limit]) + (f", ... ({len(names)} in all)" if len(names) > limit else "")


def matched_tensors(
    model: torch.nn.Module, state: Mapping[str, torch.Tensor]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs (tensor of the model, new value) for a state dict of Hugging Face names and full tensors.

    A missing name is fine only when it shares its storage with one that was given (a tied lm_head).

    Raises:
        ValueError: names that the model does not have, names that it has and that were not given, wrong shapes.
    """
    target = model.state_dict(keep_vars=True)
    unexpected = sorted(set(state) - set(target))
    given = {target[name].data_ptr() for name in state if name in target}
    missing = sorted(name for name in target if name not in state and target[name].data_ptr() not in given)
    shapes = [
        f"{name}: model {tuple(target[name].shape)}, given {tuple(tensor.shape)}"
        for name, tensor in state.items()
        if name in target and target[name].shape != tensor.shape
    ]
    problems = []
    if unexpected:
        hint = " (LoRA names: set actor_rollout_ref.model.lora.merge=True)" if "lora_" in "".join(unexpected) else ""
        problems.append(f"names the model does not have: {_listed(unexpected)}{hint}")
    if missing:
        problems.append(f"names that were not given: {_listed(missing)}")
    if shapes:
        problems.append(f"wrong shapes: {_listed(shapes)}")
    if problems:
        raise ValueError(f"weights do not fit {type(model).__name__}; " + "; ".join(problems))
    return [(target[name], tensor) for name, tensor in state.items()]
