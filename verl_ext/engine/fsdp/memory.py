"""How much a micro-batch may hold: what autograd keeps of it for the backward pass must fit into the memory for that.

A model's share is measured, not derived from its configuration: a few tokens go through it, and the storages that
autograd keeps are added up. So it holds for any architecture, precision, adapter and checkpointing of activations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

# Of the machine's memory. Larger micro-batches are not faster on a CPU: 2,048 tokens go through the model at a time.
SHARE = 0.03
LEAST = 512 * 2**20


@dataclass(frozen=True)
class Footprint:
    """Bytes that autograd keeps per token of a sequence, and per token that is scored (its logits)."""

    token: float
    scored: float

    def of(self, tokens: int, scored: int) -> float:
        """Bytes of so many tokens."""
        return tokens * self.token + scored * self.scored


def kept_bytes(forward: Callable[[], object]) -> int:
    """Bytes of all storages that autograd keeps for the backward pass of `forward`, each counted once.

    What they hold when the pass is over: FSDP frees gathered parameters within it, and others get their addresses.
    """
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = forward()
    total = sum(storage.nbytes() for storage in kept.values())
    del output
    return total


def measure(forward: Callable[[int, int], object], few: int = 32, more: int = 96) -> Footprint:
    """The footprint of a model. Differences between two passes: what is kept once, its weights, does not count.

    Args:
        forward: (tokens of a sequence, how many of them are scored) -> the model's outputs, with their graph.
    """
    least = kept_bytes(lambda: forward(few, 1))
    return Footprint(
        token=(kept_bytes(lambda: forward(more, 1)) - least) / (more - few),
        scored=(kept_bytes(lambda: forward(few, few - 1)) - least) / (few - 2),
    )


def machine_memory(limit: str = "/sys/fs/cgroup/memory.max") -> int:
    """Bytes of memory of this machine, or of the container that this process is in (`limit`: bytes, or "max")."""
    total = psutil.virtual_memory().total
    try:
        return min(total, int(Path(limit).read_text()))
    except (OSError, ValueError):  # no such file (another system), or "max"
        return total


def budget(total: int, ranks: int) -> float:
    """Bytes for one micro-batch of one rank, of `total` bytes of memory that `ranks` ranks share."""
    return max(LEAST, SHARE * total) / ranks
