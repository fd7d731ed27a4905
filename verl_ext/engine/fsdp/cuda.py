"""verl's FSDP engine on CUDA, with adapters per agent and decisions.

It is registered under a vendor of its own, so verl's engine does not change: VERL_ENGINE_VENDOR=verl_ext in the
workers' environment (ray_kwargs.ray_init.runtime_env.env_vars) selects it. The two mixins are tested on the CPU, over
gloo; what has run on GPUs is in docs/gpu.md.
"""

from __future__ import annotations

from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from verl_ext.engine.fsdp import packed_attention  # noqa: F401  (registers packed_sdpa)
from verl_ext.engine.fsdp.masked_logits import OnlyAllowed
from verl_ext.engine.lora.adapters import VENDOR
from verl_ext.engine.lora.fsdp_adapters import PerAgentAdapters


# Registered for fsdp, too, where it refuses adapters: verl's own engine would train a single adapter for all agents.
@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cuda", vendor=VENDOR)
class CUDAEngineWithLMHead(OnlyAllowed, PerAgentAdapters, FSDPEngineWithLMHead):
    """Actor and reference model."""
