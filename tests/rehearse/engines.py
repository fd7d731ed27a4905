"""The real vLLM behind verl's replica, and our `hf` engine in this process, over the same folder and adapters.

vLLM starts as in training: verl's replica launches our server as a Ray actor, verl's clients ask it through verl's load
balancer, and our sender brings weights by verl's transport.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import ray
import torch
from omegaconf import OmegaConf

from tests.rehearse import DTYPE, ON_GPU
from verl_ext.engine.lora.adapters import AdapterOptions
from verl_ext.trainer.rollout.llm import ServedLLM, client_of_calls

# Settings for the build alone: it has no sleep mode, and takes a share of the machine's memory unless told how much.
BUILD = {
    "enforce_eager": True,
    "enable_sleep_mode": False,
    "free_cache_engine": False,
    "engine_kwargs": {"vllm": {"kv_cache_memory_bytes": 2**28}},
}
LENGTH = 1024
# Tokens that vLLM computes in one step at most: longer prompts are computed in parts.
PART = 256
# For every process of vLLM. Compiling a small function of its sampler takes a minute of one core.
ENVIRONMENT = {
    **({} if ON_GPU else {"VERL_PLATFORM": "cpu"}),
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
}
OPTIONS = AdapterOptions(("solver", "critic"), rank=8, alpha=16)
LORA = {
    "lora_rank": OPTIONS.rank,
    "lora_alpha": OPTIONS.alpha,
    "lora": {"adapters": list(OPTIONS.names)},
    "target_modules": OPTIONS.targets,
}


def rollout_config(name: str = "vllm", **settings: Any) -> Any:
    """verl's section `rollout` of a run of ours."""
    from verl.workers.config import RolloutConfig
    from verl.workers.config.rollout import AgentLoopConfig

    manager = "verl_ext.trainer.rollout.agent_loop.MultiAgentLoopManager"
    return RolloutConfig(
        name=name,
        dtype=DTYPE,
        load_format="auto",
        tensor_model_parallel_size=1,
        prompt_length=LENGTH // 2,
        response_length=LENGTH // 2,
        max_model_len=LENGTH,
        max_num_seqs=64,
        max_num_batched_tokens=PART,
        **({"gpu_memory_utilization": 0.1} if ON_GPU else {}),  # other programs may be on the card
        agent=AgentLoopConfig(agent_loop_manager_class=manager),
        **(BUILD if name == "vllm" else {}),
        **settings,
    )


def model_config(folder: Path) -> Any:
    """verl's section `model`, with an adapter per agent."""
    from verl.workers.config import HFModelConfig

    return HFModelConfig(path=str(folder), **LORA)


@ray.remote(num_gpus=1)
class _Place:
    """Stands for the trainer's rank beside which verl launches the engine."""


class VLLM:
    """A running vLLM.

    Attributes:
        replica: verl's.
        server: its Ray actor.
    """

    def __init__(self, folder: Path):
        from verl.workers.rollout.replica import RolloutMode, get_rollout_replica_class
        from verl.workers.rollout.router import get_router_handle

        self.rollout, self.model = rollout_config(), model_config(folder)
        self.replica = get_rollout_replica_class("vllm")(0, self.rollout, self.model, gpus_per_node=1)
        self.replica.rollout_mode, self.replica.workers = RolloutMode.HYBRID, [_Place.remote()]
        asyncio.run(self.replica.launch_servers())
        self.server = self.replica.server_handle
        self._balancer = get_router_handle({self.replica.server_address: self.server})

    def llm(self, resuming: bool = False) -> ServedLLM:
        """As a rollout worker has it.

        Args:
            resuming: by verl's client of asynchronous training, which resumes what was aborted.
        """
        from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient

        section = {"name": "vllm", "full_determinism": False, "response_length": self.rollout.response_length}
        config = OmegaConf.create({"actor_rollout_ref": {"rollout": section}})
        client = (FullyAsyncLLMServerClient if resuming else LLMServerClient)(config, self._balancer)
        return ServedLLM(self.model.tokenizer, client_of_calls(client))

    async def update(self, adapters: Mapping[str, torch.Tensor], step: int) -> None:
        """Send adapters as a trainer's rank does; raises if vLLM does not hold them afterwards."""
        from verl_ext.engine.vllm.sender import WeightSender

        layers = sorted({name.rsplit(".lora_", 1)[0].rpartition(".")[2] for name in adapters})
        about = {"r": OPTIONS.rank, "lora_alpha": OPTIONS.alpha, "target_modules": layers}
        about["adapters"] = list(OPTIONS.names)
        sender = WeightSender(self.rollout, self.model, device_mesh=None)
        await sender.update_weights(iter(adapters.items()), global_steps=step, peft_config=about, base_sync_done=True)

    async def runs(self, requests: int) -> bool:
        """Whether the engine has that many requests now."""
        return requests == await self.server.__ray_call__.remote(_unfinished)


def _unfinished(server: Any) -> int:
    """Runs in the server."""
    return server.engine.output_processor.get_num_unfinished_requests()


@contextmanager
def ray_running() -> Iterator[None]:
    """Ray, without a GPU with verl's platform `cpu` in all processes."""
    os.environ.update(ENVIRONMENT | {"RANK": "0", "RAY_LOCAL_WORLD_SIZE": "1"})
    ray.init(num_cpus=4, num_gpus=1, runtime_env={"env_vars": ENVIRONMENT}, include_dashboard=False)
    try:
        yield
    finally:
        ray.shutdown()


def hf_llm(folder: Path) -> ServedLLM:
    """Our engine over the same folder."""
    from verl_ext.engine.lora.hf_server import HFAdapterServer

    server = HFAdapterServer(rollout_config("hf"), model_config(folder))
    return ServedLLM(server.model_config.tokenizer, server)


@lru_cache(maxsize=2)
def _plain(folder: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """The model with adapters, which whoever uses it sets, and its route, as the trainer has them."""
    from transformers import AutoModelForCausalLM

    from verl_ext.engine.lora.routed_lora import add_adapters

    return add_adapters(AutoModelForCausalLM.from_pretrained(folder, dtype=dtype), OPTIONS)


def adapters_of(folder: Path, seed: int) -> dict[str, torch.Tensor]:
    """Random adapters that change what the model says, by wire name.

    The norm of their change is a share of the layer's own, less in a deep model, which still speaks: where a model
    babbles, two engines in bf16 babble differently.
    """
    from tests.engine.lora_models import adapter_parameters, randomise
    from verl_ext.engine.lora.routed_lora import RoutedLoraLinear

    model, _ = _plain(folder, torch.float32)
    parameters = adapter_parameters(model)
    randomise(parameters, seed)
    share = 0.9 / model.config.num_hidden_layers**0.5
    with torch.no_grad():
        for layer in [module for module in model.modules() if isinstance(module, RoutedLoraLinear)]:
            for name in OPTIONS.names:
                change = layer.get_delta_weight(name).norm()
                layer.lora_B[name].weight.mul_(share * layer.get_base_layer().weight.norm() / change)
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}


def scored(
    folder: Path, adapters: Mapping[str, torch.Tensor], name: str, prompt: Sequence[int], output: Sequence[int]
) -> list[torch.Tensor]:
    """Log-probabilities (tokens, vocabulary) at each place of a given output, by plain forward passes: fp32, bf16.

    Args:
        name: the adapter, or "" for the base alone.
    """
    from tests.engine.lora_models import adapter_parameters

    found = []
    for dtype in (torch.float32, torch.bfloat16):
        model, route = _plain(folder, dtype)
        for key, parameter in adapter_parameters(model).items():
            parameter.data.copy_(adapters[key])
        with torch.no_grad(), ExitStack() as mine:
            mine.enter_context(route.using([int(name == one) for one in OPTIONS.names]))
            if not name:
                mine.enter_context(model.disable_adapter())
            logits = model(input_ids=torch.tensor([[*prompt, *output]])).logits
        found.append(logits[0, len(prompt) - 1 : -1].float().log_softmax(-1))
    return found


async def until(holds: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait until an asynchronous condition holds."""
    deadline = time.monotonic() + seconds
    while not await holds():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.02)
