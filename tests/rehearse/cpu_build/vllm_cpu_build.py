"""What vLLM's build for CPUs needs to take new weights, and to keep agents apart. GPU users never load this file.

vLLM loads it in each of its processes, as a plugin (pyproject.toml beside it).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch


def apply() -> None:
    """Patch this process."""
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu
    from vllm.model_executor.layers import utils

    utils.dispatch_cpu_unquantized_gemm = _keep_weights
    lora_ops.bgmv_shrink = punica_cpu.bgmv_shrink = partial(_shrink, lora_ops.bgmv_shrink)


def _keep_weights(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Keep the weights of linear layers as they are.

    The build repacks them for its kernels and drops the originals, so that nothing is left to load new weights into.
    """
    layer.cpu_linear = torch.nn.functional.linear


def _shrink(
    original: Callable[..., None], inputs: torch.Tensor, weights: torch.Tensor, output: torch.Tensor, *rest: Any
) -> None:
    """`x A` of each row's adapter, and zero for a row without one.

    Such a row has the number -1. The build's kernel takes it for the last adapter, as soon as a row of the batch has an
    adapter; the kernels for GPUs skip it.
    """
    original(inputs, weights, output, *rest)
    output[rest[0] < 0] = 0
