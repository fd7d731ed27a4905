"""vLLM's servers: of all our runs, and with adapters per agent, where the sampling parameters of a request name one.

verl has one LoRA, with a fixed number, in the server and in the worker. Here the worker holds one LoRA per adapter
(worker.py). `RoutedEngine` sits between verl's `generate` and vLLM's, and passes the LoRA that the request names.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import ray
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica
from vllm.lora.request import LoRARequest

from verl_ext.engine.hf.params import derived_seed
from verl_ext.engine.lora.adapters import ADAPTER, BASE, SECTION, AdapterOptions
from verl_ext.engine.policy_names import POLICY, VARIABLE, policy_of, prefix_of
from verl_ext.engine.policy_replica import PolicyReplica
from verl_ext.engine.replaced import replaced
from verl_ext.engine.vllm.served import SERVED
from verl_ext.engine.vllm.worker import FIRST_ID

# vLLM 0.24 has two model runners. The newer one, its default for Llama, Mistral, Qwen3 and others, silently loses some
# of a request's allowed tokens on GPUs (vLLM's pull request 46245; 0.28 has it): choices that agents never get.
OLDER_RUNNER = ("VLLM_USE_V2_MODEL_RUNNER", "0")


def is_ours(rollout: Any) -> bool:
    """Whether a rollout configuration is of a run of ours: registered is one server for all runs of verl."""
    return str(rollout.agent.agent_loop_manager_class or "").startswith("verl_ext.")


class RoutedEngine:
    """vLLM's engine; each request goes to the LoRA that `extra_args` of its sampling parameters names.

    Args:
        engine: vLLM's AsyncLLM.
        loras: by adapter; None: the base alone.
    """

    def __init__(self, engine: Any, loras: Mapping[str, LoRARequest | None]) -> None:
        self._engine, self._loras = engine, loras

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(
        self, *, sampling_params: Any, lora_request: LoRARequest | None, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        """As vLLM's `generate`, as verl calls it: verl's own LoRA is never loaded, so `lora_request` is None."""
        assert lora_request is None, lora_request
        extra = dict(sampling_params.extra_args)
        lora = self._loras[extra.pop(ADAPTER)]
        sampling_params.extra_args = extra or None
        return self._engine.generate(sampling_params=sampling_params, lora_request=lora, **kwargs)


class VLLMServer(vLLMHttpServer):
    """verl's vLLM server, whose workers say which weights they hold."""

    compared, policy = 0.0, ""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        self.policy = policy_of(config)
        os.environ[VARIABLE] = self.policy  # vLLM's workers, its child processes, listen at the policy's addresses
        os.environ.setdefault(*OLDER_RUNNER)
        super().__init__(config, *args, **kwargs)

    async def generate(
        self, prompt_ids: list[int], sampling_params: Mapping[str, Any], request_id: str, **kwargs: Any
    ) -> TokenOutput:
        """As verl's method. The noise also depends on the length of the prompt.

        vLLM's noise begins anew with each request. The tokens of a decision are requests of one seed, and so are the
        parts of an output that was interrupted: the same noise in all of them would make later tokens repeat earlier
        ones, at other probabilities than those reported.
        """
        given = dict(sampling_params)
        if given.get("seed") is not None:
            given["seed"] = derived_seed(given["seed"], len(prompt_ids))
        output = await super().generate(prompt_ids, given, request_id, **kwargs)
        if self.policy:
            output.extra_fields[POLICY] = self.policy
        return output

    def _get_worker_extension_cls(self) -> str:
        return "verl_ext.engine.vllm.worker.WeightWorker"

    async def weights_held(self) -> list[dict[str, tuple[int, str]]]:
        """`WeightWorker.weights_held` of every worker."""
        workers = await self.engine.collective_rpc("weights_held")
        states = [state for held in workers for _, state in held.values()]
        self.compared = states.count(SERVED) / max(len(states), 1)
        return workers

    async def weights_compared(self) -> float:
        """The share of the last update's tensors that were compared as they serve, not only as they arrived."""
        return self.compared


class VLLMAdapterServer(VLLMServer):
    """The same for a model with `lora.adapters`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = AdapterOptions.from_config(self.model_config).names
        self.loras = {name: LoRARequest(name, number, name) for number, name in enumerate(names, FIRST_ID)}

    async def run_server(self, args: argparse.Namespace) -> None:
        """As verl's method, with room for all adapters in a batch."""
        args.max_loras = len(self.loras)
        await super().run_server(args)
        self.engine = RoutedEngine(self.engine, {**self.loras, BASE: None})

    async def run_headless(self, args: argparse.Namespace) -> None:
        """As `run_server`, on the other machines of a replica."""
        args.max_loras = len(self.loras)
        await super().run_headless(args)

    async def generate(
        self, prompt_ids: list[int], sampling_params: Mapping[str, Any], request_id: str, **kwargs: Any
    ) -> TokenOutput:
        """As verl's method, with the adapter that the sampling parameters name.

        Raises:
            ValueError: they name no adapter, or an unknown one.
        """
        given = dict(sampling_params)
        name = given.pop(ADAPTER, None)
        if name != BASE and name not in self.loras:
            allowed = f"{', '.join(self.loras)} ({SECTION}.lora.adapters), or {BASE!r} for the base"
            raise ValueError(f"request {request_id}: adapter {name!r} is unknown; allowed: {allowed}")
        given["extra_args"] = {**(given.get("extra_args") or {}), ADAPTER: name}
        output = await super().generate(prompt_ids, given, request_id, **kwargs)
        output.extra_fields[ADAPTER] = name
        return output


class CheckedReplica(PolicyReplica, vLLMReplica):
    """verl's vLLM replica. The policy of our runs gets a `VLLMServer`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if is_ours(self.config) and not (self.is_reward_model or self.is_teacher_model):
            adapters = AdapterOptions.from_config(self.model_config) is not None
            self.server_class = ray.remote(VLLMAdapterServer if adapters else VLLMServer)

    async def launch_servers(self) -> None:
        """As verl's method. The prefix names the policy, and senders look for a server without a suffix."""
        with replaced(self, name_suffix="" if self.policy else self.name_suffix):
            await super().launch_servers()

    def _get_server_name_prefix(self) -> str:
        return prefix_of("vllm", self.policy)
