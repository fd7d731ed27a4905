"""`rollout.name=hf` for verl: a replica that launches the server, and the adapter that ships weights to it."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from typing import Any

import ray
import torch
from torch.distributed.device_mesh import DeviceMesh
from verl.utils.device import get_device_name, get_visible_devices_keyword
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import CONTROL_METHOD_CONCURRENCY
from verl.workers.rollout.utils import ensure_async_iterator

from verl_ext.engine.fingerprints import fingerprints, owner_of
from verl_ext.engine.hf.server import HFServer
from verl_ext.engine.lora.adapters import NO_ADAPTERS, AdapterOptions
from verl_ext.engine.lora.hf_server import HFAdapterServer
from verl_ext.engine.policy_names import number_of, policy_of, prefix_of
from verl_ext.engine.policy_replica import PolicyReplica

__all__ = ["HFReplica", "ServerAdapter", "server_handles", "server_name"]


def server_name(replica_rank: int, suffix: str = "", policy: str = "") -> str:
    """Ray name of a replica's server; `policy` as in `policy_names.policy_of`."""
    return f"{prefix_of('hf', policy)}server_{replica_rank}_0{suffix}"


def server_handles(policy: str = "") -> list[ray.actor.ActorHandle]:
    """The policy's servers of this Ray job, by replica rank."""
    pattern = re.compile(rf"{re.escape(prefix_of('hf', policy))}server_(\d+)_0")
    found = {int(match[1]): name for name in ray.util.list_named_actors() if (match := pattern.fullmatch(name))}
    return [ray.get_actor(found[rank]) for rank in sorted(found)]


class HFReplica(PolicyReplica):
    """One server per replica, on the node of its first trainer rank.

    tensor, data and pipeline parallel sizes do not split the model; their product is the number of trainer ranks that
    share one server.
    """

    async def launch_servers(self) -> None:
        """Start the server actor; returns once its model is there."""
        kind = "_reward" if self.is_reward_model else "_teacher" if self.is_teacher_model else ""
        suffix = f"{kind}{self.name_suffix}" if kind else ""
        name = server_name(self.replica_rank, suffix, self.policy)
        options: dict[str, Any] = {"name": name, "num_cpus": 0, "max_concurrency": self.max_concurrency}
        device = get_device_name()
        if self.workers:
            node, visible = await self.workers[0].__ray_call__.remote(_whereabouts)
            options["scheduling_strategy"] = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, False)
            if device != "cpu":  # Ray hides the accelerators from actors that reserve none
                options["runtime_env"] = {"env_vars": {f"RAY_EXPERIMENTAL_NOSET_{get_visible_devices_keyword()}": "1"}}
                options["runtime_env"]["env_vars"][get_visible_devices_keyword()] = visible
        adapters = not kind and AdapterOptions.from_config(self.model_config)
        remote = _RemoteAdapterServer if adapters else _RemoteServer
        # On this machine: as many as there are trainer ranks for, and of each policy as many.
        servers = max(1, self.gpus_per_node // self.world_size) * number_of(self.config)
        server = remote.options(**options).remote(self.config, self.model_config, self.replica_rank, device, servers)
        await server.stats.remote()  # an error of the constructor surfaces here
        self.servers = [server]
        self._server_handle, self._server_address = server, name


_RemoteServer, _RemoteAdapterServer = (
    ray.remote(concurrency_groups={"control": CONTROL_METHOD_CONCURRENCY})(cls) for cls in (HFServer, HFAdapterServer)
)


def _whereabouts(_: Any) -> tuple[str, str]:
    """Runs in a worker: its Ray node and the accelerators it sees."""
    return ray.get_runtime_context().get_node_id(), os.environ.get(get_visible_devices_keyword(), "")


class ServerAdapter(BaseRollout):
    """Sends weights to the server. One per trainer rank: all ranks iterate (a collective), the first one sends.

    Raises:
        ValueError: LoRA without merging, and without adapters per agent; the server has none then.
    """

    def __init__(self, config: Any, model_config: Any, device_mesh: DeviceMesh | None, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        self.adapters = AdapterOptions.from_config(self.model_config)
        if self.model_config.lora_rank > 0 and not (self.model_config.lora.get("merge", False) or self.adapters):
            raise ValueError(_LORA_HELP)
        ranks = (
            self.config.tensor_model_parallel_size
            * self.config.data_parallel_size
            * self.config.pipeline_model_parallel_size
        )
        rank = int(os.environ.get("RANK", "0"))
        self.replica_rank = rank // ranks if replica_rank == -1 else replica_rank
        self.is_leader_rank = rank % ranks == 0
        self._server: ray.actor.ActorHandle | None = None

    @property
    def server(self) -> ray.actor.ActorHandle:
        """The replica's server, which starts after the adapter."""
        if self._server is None:
            self._server = ray.get_actor(server_name(self.replica_rank, policy=policy_of(self.config)))
        return self._server

    async def resume(self, tags: list[str]) -> None:
        """Nothing to do: weights stay in the server, keys and values are allocated by the first request."""

    async def release(self) -> None:
        """Free the server's keys and values."""
        if self.is_leader_rank:
            await self.server.sleep.remote()

    @torch.no_grad()
    async def update_weights(
        self,
        weights: Generator[tuple[str, torch.Tensor], None, None],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        peft_config: Any = None,
        base_sync_done: bool = False,
        **kwargs: Any,
    ) -> None:
        """Ship a whole state dict (Hugging Face names, full tensors) to the server, as one object.

        Args:
            weights: (name, tensor) pairs, a generator or an asynchronous one; producing them is collective.
            wire_format: "named_tensors" only.
            global_steps: version of the weights.
            peft_config: with adapters per agent: their description by fsdp_adapters.py. None: a checkpoint engine has
                brought the weights, without one.
            base_sync_done: no effect; the names of the tensors tell adapters from the base.

        Raises:
            ValueError: another wire format, adapters of another kind, or weights that do not fit the server's model.
        """
        if wire_format != "named_tensors":
            raise ValueError(
                f"rollout.name=hf takes wire_format='named_tensors', got {wire_format!r}: set "
                "rollout.checkpoint_engine.backend=naive"
            )
        if self.adapters is None and peft_config is not None:
            raise ValueError(_LORA_HELP)
        if self.adapters is not None and peft_config is not None:
            if peft_config.get("adapters") != list(self.adapters.names):
                raise ValueError(NO_ADAPTERS)
        state = {}
        async for name, tensor in ensure_async_iterator(weights):
            if self.is_leader_rank:
                # Cloned: a producer may reuse its buffer for the next tensor.
                state[name] = tensor.detach().to("cpu", copy=True)
        if not self.is_leader_rank:
            return
        parts: dict[bool, dict[str, torch.Tensor]] = {False: {}, True: {}}
        for name, tensor in state.items():
            parts[bool(owner_of(name))][name] = tensor
        brought = {owner_of(name) for name in parts[True]}
        if self.adapters is not None and peft_config is None and brought != set(self.adapters.names):
            raise ValueError(NO_ADAPTERS)
        for own, part in parts.items():
            if part:
                await (self.server.update_adapters if own else self.server.update_weights).remote(part, global_steps)
                await self._check_held(part, global_steps)

    async def _check_held(self, sent: dict[str, torch.Tensor], step: int | None) -> None:
        """Compare what the server now holds with what was sent.

        Raises:
            RuntimeError: they differ; names the adapters.
        """
        dtypes, held = await self.server.fingerprints.remote(list(sent))
        expected = fingerprints({name: tensor.to(dtypes[name]) for name, tensor in sent.items()})
        wrong = [name or "the base" for name in expected if held.get(name) != expected[name]]
        if wrong:
            raise RuntimeError(
                f"after step {step} the rollout engine does not hold the weights that the trainer sent: "
                f"{', '.join(wrong)}"
            )


_LORA_HELP = (
    "rollout.name=hf takes no single LoRA adapter; set actor_rollout_ref.model.lora.merge=True, then verl merges it "
    "into the weights it sends"
)
