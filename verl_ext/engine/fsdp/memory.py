"""How much a micro-batch may hold: what autograd keeps of it for the backward pass must fit into the memory for that.

A model's share is measured, not derived from its configuration: a few tokens go through it, and the storages that
autograd keeps are added up. So it holds for any architecture, precision, adapter and checkpointing of activations.
Where that is short, layers may be computed twice: their insides are not kept, but made again when needed. That is done
where it is cheaper than more micro-batches (batching.cheapest_number), and for a row that alone is too long.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

# Of the machine's memory. With 135M parameters and 24 GB, 0.04 takes a tenth less time in float32, and 0.6 GB more;
# less than 0.03 takes a tenth more time in bfloat16, because prefixes are computed in more micro-batches.
SHARE = 0.03
# Of the memory that no program uses, where that is little.
FREE_SHARE = 0.5
LEAST = 64 * 2**20
# From this much over the budget on, the layers of a micro-batch are computed twice.
SLACK = 1.2
GIB = 2**30
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Footprint:
    """Bytes that autograd keeps per token of a sequence, and per token that is scored (its logits)."""

    token: float
    scored: float

    def of(self, tokens: int, scored: int) -> float:
        """Bytes of so many tokens."""
        return tokens * self.token + scored * self.scored

    def of_layers_twice(self, layers: int, width: int) -> Footprint:
        """If the layers are computed twice: the input of each, in fp32, and the inside of one layer at a time."""
        return Footprint(min(self.token, 4 * layers * width + self.token / max(layers, 1)), self.scored)


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


def available_memory(folder: str = "/sys/fs/cgroup") -> int:
    """Bytes that no program uses, of this machine or of the container that this process is in.

    What the container's files have in the page cache counts as available.
    """
    free = psutil.virtual_memory().available
    try:
        limit, used = (int((Path(folder) / name).read_text()) for name in ("memory.max", "memory.current"))
        counts = dict(line.split() for line in (Path(folder) / "memory.stat").read_text().splitlines())
        return min(free, limit - used + int(counts["inactive_file"]))
    except (OSError, ValueError, KeyError):
        return free


def still_to_come(parameters: list[torch.nn.Parameter], optimiser: torch.optim.Optimizer) -> int:
    """Bytes of gradients and Adam's two moments that the optimiser has not allocated yet."""
    trained = [one for one in parameters if one.requires_grad]
    absent = [one.numel() * (one.grad is None) + 2 * one.numel() * (not optimiser.state.get(one)) for one in trained]
    return sum(numbers * one.element_size() for numbers, one in zip(absent, trained, strict=True)) // _ranks(trained)


def _ranks(parameters: list[torch.nn.Parameter]) -> int:
    """Ranks that a parameter is sharded over; each counts what is its own."""
    mesh = getattr(parameters[0], "device_mesh", None) if parameters else None
    return mesh.size() if mesh is not None else 1


def budget(total: int, ranks: int, free: float = float("inf")) -> float:
    """Bytes for one micro-batch of one rank.

    It depends on the machine alone as long as memory is not short, so that a run can be repeated exactly.

    Args:
        total: bytes of memory. free: bytes of it that will be left for all micro-batches. ranks: that share it.
    """
    return max(LEAST, min(SHARE * total, FREE_SHARE * free)) / ranks


def report(footprint: Footprint, budget: float, free: float) -> None:
    """Log what was chosen."""
    logger.warning(
        "training engine: a micro-batch may keep %.2f GiB for its backward pass (%.1f GiB of memory are available): "
        "%s tokens of %.0f KiB, and %.0f KiB for each that is scored; the layers of a larger one are computed twice",
        *(budget / GIB, free / GIB, f"{budget / footprint.token:,.0f}" if footprint.token else "any number of"),
        *(footprint.token / 1024, footprint.scored / 1024),
    )


@contextmanager
def recomputing(model: Any, needed: bool, options: dict[str, Any]) -> Iterator[None]:
    """Let passes in this block keep the layers' inputs only, and compute the layers again in the backward pass.

    Without effect if it is not `needed`, the model cannot do so, or does so anyway (enable_gradient_checkpointing).
    `model`: of transformers. `options`: of torch.utils.checkpoint.
    """
    able = getattr(model, "supports_gradient_checkpointing", False) and not model.is_gradient_checkpointing
    if not (needed and able):
        yield
        return
    model.gradient_checkpointing_enable(options)
    try:
        yield
    finally:
        model.gradient_checkpointing_disable()
