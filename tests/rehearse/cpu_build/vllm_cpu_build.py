"""What vLLM's build for CPUs needs to take new weights while it runs. GPU users never load this file.

vLLM loads it in each of its processes, as a plugin (pyproject.toml beside it).
"""

from __future__ import annotations

import torch


def apply() -> None:
    """Keep the weights of linear layers as they are.

    The build repacks them for its kernels and drops the originals, so that nothing is left to load new weights into.
    """
    from vllm.model_executor.layers import utils

    utils.dispatch_cpu_unquantized_gemm = _keep_weights


def _keep_weights(layer: torch.nn.Module, remove_weight: bool) -> None:
    layer.cpu_linear = torch.nn.functional.linear
