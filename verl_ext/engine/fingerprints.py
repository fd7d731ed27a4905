"""Fingerprints of weights: computed by the trainer and by the rollout engine, and compared after each update."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import torch

# Values in a part of a tensor; within a part their order does not matter to a fingerprint.
PART = 4096


def fingerprint(name: str, tensor: torch.Tensor) -> int:
    """A fingerprint of the bits of a tensor, and of its name.

    About as fast as memory is read. Equal tensors of one type have equal fingerprints on every device.
    """
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    bits = tensor.detach().contiguous().view(kind).flatten()
    whole = len(bits) // PART * PART
    sums = torch.cat([bits[:whole].view(-1, PART).sum(1), bits[whole:].sum()[None]])
    places = torch.arange(1, len(sums) + 1, device=sums.device)
    return (int((sums * places).sum()) ^ zlib.crc32(name.encode())) & 0xFFFFFFFFFFFFFFFF


def owner_of(name: str) -> str:
    """The adapter of a tensor ("" for names without one: see lora/adapters.wire_name)."""
    return name.split("/", 1)[0] if "/" in name else ""


def fingerprints(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """A fingerprint of all tensors of each adapter, whatever their order."""
    found: dict[str, int] = {}
    for name, tensor in tensors.items():
        owner = owner_of(name)
        found[owner] = (found.get(owner, 0) + fingerprint(name, tensor)) & 0xFFFFFFFFFFFFFFFF
    return found
