"""Weights of linear layers in the order in which a CPU's kernels read them, for passes over few tokens.

A product arranges the whole weight for the kernels in every call. For the few rows of a decode step that takes as long
as the product itself, most of all in the output layer; here it is done once after each change of the weights. A decode
step of 16 rows with 135M parameters takes a fifth less, for a second copy of the weights while the engine samples.
"""

from __future__ import annotations

import torch
from torch import nn

from verl_ext.engine.fsdp.memory import machine_memory

TOKENS = 64  # of a pass, at most: with more, arranging the weights costs little
NUMBERS = 2**18  # of a weight, at least: the caches hold smaller ones
SHARE = 0.05  # of the machine's memory for packed weights; the largest come first


class PackedLinear(nn.Linear):
    """A linear layer that keeps its weight in both orders.

    It notices what changes the weight in place, or puts another in its place; after writing to `weight.data`, `unpack`.
    """

    _packed: tuple[tuple[int, int], torch.Tensor] | None = None  # and of which state of the weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in) -> (..., out); one token alone is faster without."""
        few = self.in_features < x.numel() <= TOKENS * self.in_features and x.dtype == self.weight.dtype
        if not few or not torch.is_inference_mode_enabled():
            return super().forward(x)
        state = self.weight.data_ptr(), self.weight._version
        if self._packed is None or self._packed[0] != state:
            self._packed = None
            self._packed = state, torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), TOKENS)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed[1], self.bias, "none", [], "")


def pack(model: nn.Module) -> None:
    """Let the large linear layers of a model on a CPU pack their weights when they first need it."""
    layers = [one for one in model.modules() if type(one) is nn.Linear and _can(one.weight)]
    left = SHARE * machine_memory()
    for layer in sorted(layers, key=lambda one: one.weight.numel(), reverse=True):
        left -= layer.weight.nbytes
        if left < 0:
            return
        layer.__class__ = PackedLinear


def unpack(model: nn.Module) -> None:
    """Free the packed weights; the next pass over few tokens makes them again."""
    for layer in model.modules():
        if isinstance(layer, PackedLinear):
            layer._packed = None


def _can(weight: torch.Tensor) -> bool:
    """Whether packing pays, and PyTorch has these kernels for the weight's device and type, here."""
    plain = type(weight) is nn.Parameter and weight.device.type == "cpu" and not weight.is_inference()
    if not plain or weight.numel() < NUMBERS or not torch.backends.mkldnn.is_available():
        return False
    half = weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype == torch.float32 or half
