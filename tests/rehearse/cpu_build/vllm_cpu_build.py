"""What vLLM's build for CPUs needs to take new weights, to keep agents apart, and to sample after a prompt in parts.

GPU users never load this file.

vLLM loads it in each of its processes, as a plugin (pyproject.toml beside it).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, partialmethod
from typing import Any

import torch


def apply() -> None:
    """Patch this process."""
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu
    from vllm.model_executor.layers import utils
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    utils.dispatch_cpu_unquantized_gemm = _keep_weights
    lora_ops.bgmv_shrink = punica_cpu.bgmv_shrink = partial(_shrink, lora_ops.bgmv_shrink)
    GPUModelRunner.sample_tokens = partialmethod(_sample_tokens, GPUModelRunner.sample_tokens)


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


class _Spare(torch.Generator):
    """Draws what is thrown away."""

    def get_offset(self) -> int:
        return 0

    def set_offset(self, offset: int) -> None:
        pass


def _sample_tokens(runner: Any, original: Callable[..., Any], *rest: Any) -> Any:
    """Sample; rows in the middle of their prompt draw from a spare generator.

    vLLM throws their tokens away, and sets the offset of their generators back. A generator of the CPU has no offset.
    """
    batch = runner.input_batch
    middle = runner.discard_request_mask.np[: batch.num_reqs].nonzero()[0].tolist()
    own = {row: batch.generators[row] for row in middle if row in batch.generators}
    batch.generators.update({row: _Spare() for row in own})
    try:
        return original(runner, *rest)
    finally:
        batch.generators.update(own)
