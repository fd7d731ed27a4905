"""verl's FSDP engine on CUDA with adapters per agent and decisions, under a vendor of its own: verl's stays what it is.

VERL_ENGINE_VENDOR=verl_ext in the workers' environment chooses it (ray_kwargs.ray_init.runtime_env.env_vars); other
engines are then found as ever. Not run: there was no GPU. What it adds to verl's is tested on the CPU, over gloo.
"""

from __future__ import annotations

from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from verl_ext.engine.fsdp.masked_logits import OnlyAllowed
from verl_ext.engine.lora.adapters import VENDOR
from verl_ext.engine.lora.fsdp_adapters import PerAgentAdapters


# For fsdp, too, where adapters are refused: verl's own engine would train a single one.
@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cuda", vendor=VENDOR)
class CUDAEngineWithLMHead(OnlyAllowed, PerAgentAdapters, FSDPEngineWithLMHead):
    """Actor and reference model."""
