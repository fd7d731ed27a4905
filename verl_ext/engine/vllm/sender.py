"""Sends weights from the trainer to vLLM, and checks that they are there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any, TypeVar

import ray
import torch
from verl.workers.rollout.utils import ensure_async_iterator
from verl.workers.rollout.vllm_rollout import ServerAdapter, vllm_rollout
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender

from verl_ext.engine.fingerprints import fingerprint, owner_of
from verl_ext.engine.lora.adapters import NO_ADAPTERS, AdapterOptions
from verl_ext.engine.policy_names import address_of, policy_of, prefix_of
from verl_ext.engine.replaced import replaced
from verl_ext.engine.vllm.served import check_held
from verl_ext.engine.vllm.server import is_ours

T = TypeVar("T")
# Milliseconds after which the sender looks whether vLLM has failed meanwhile.
PATIENCE = 1000


class WeightSender(ServerAdapter):
    """verl's sender in every trainer rank.

    In our runs it compares what vLLM's workers got, and serve, with what it sent. Other runs are as without us.
    """

    policy = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ours = is_ours(self.config)
        self.adapters = AdapterOptions.from_config(self.model_config) if self.ours else None
        self._updating: Any = None
        self.policy = policy_of(self.config)
        self.zmq_handle = address_of(self.zmq_handle, self.policy)

    def _get_server_name_prefix(self) -> str:
        return prefix_of("vllm", self.policy)

    async def update_weights(
        self,
        weights: Any,
        global_steps: Any = None,
        wire_format: str = "named_tensors",
        **kwargs: Any,
    ) -> None:
        """As verl's method. Without `peft_config`, a checkpoint engine brings the weights, by names and tensors alone.

        Raises:
            ValueError: the trainer's engine has other adapters, or none.
            RuntimeError: vLLM could not load the weights, or does not hold them afterwards.
        """
        about = kwargs.get("peft_config") or {}
        if self.adapters is not None and about and about.get("adapters") != list(self.adapters.names):
            raise ValueError(NO_ADAPTERS)
        if not self.ours or wire_format != "named_tensors":
            await super().update_weights(weights, global_steps, wire_format, **kwargs)
        elif self.adapters is not None and not about:
            await self._update_received(weights, self.adapters, global_steps)
        else:
            await self._update_checked(weights, global_steps, **kwargs)

    async def _update_received(self, weights: Any, options: AdapterOptions, step: Any) -> None:
        """Pass on what comes from the trainer's ranks: all adapters, and before them, the first time, the base."""
        about: dict[str, Any] = {"r": options.rank, "lora_alpha": options.alpha, "adapters": list(options.names)}
        stream, adapters = ensure_async_iterator(weights), dict[str, torch.Tensor]()

        async def base() -> AsyncIterator[tuple[str, torch.Tensor]]:
            async for name, tensor in stream:
                if not owner_of(name):
                    yield name, tensor
                else:  # copied: a checkpoint engine may use its buffer again
                    adapters[name] = tensor.detach().to("cpu", copy=True)

        parts = base()
        if (first := await anext(parts, None)) is not None:
            await self._update_checked(_after(first, parts), step, peft_config=about, base_sync_done=False)
        if {owner_of(name) for name in adapters} != set(options.names):
            raise ValueError(NO_ADAPTERS)
        about["target_modules"] = sorted({name.rsplit(".lora_", 1)[0].rpartition(".")[2] for name in adapters})
        await self._update_checked(iter(adapters.items()), step, peft_config=about, base_sync_done=True)

    async def _update_checked(self, weights: Any, step: Any, **kwargs: Any) -> None:
        """verl's update of vLLM, compared with what vLLM then holds."""
        sent: dict[str, int] = {}
        noted: Any = self._noted(weights, sent)
        with replaced(vllm_rollout, BucketedWeightSender=partial(_WatchingSender, self)):
            await super().update_weights(noted, step, **kwargs)
        if self._has_server:
            for held in await self.server_handle.weights_held.remote():
                check_held(sent, held, step)

    async def _noted(self, weights: Any, sent: dict[str, int]) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """The same weights; fills `sent` with their fingerprints, in the rank that asks the server."""
        async for name, tensor in ensure_async_iterator(weights):
            if self._has_server:
                sent[name] = fingerprint(name, tensor)
            yield name, tensor

    async def _execute_method(self, *args: Any, **kwargs: Any) -> Any:
        self._updating = await super()._execute_method(*args, **kwargs)
        return self._updating


async def _after(first: T, others: AsyncIterator[T]) -> AsyncIterator[T]:
    yield first
    async for other in others:
        yield other


class _WatchingSender(BucketedWeightSender):
    """verl's sender, which otherwise waits for ever for a worker whose update has failed."""

    def __init__(self, owner: WeightSender, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._owner = owner

    def _init_socket(self) -> None:
        super()._init_socket()
        self.socket = _WatchingSocket(self.socket, self._owner._updating)


class _WatchingSocket:
    """A socket whose `recv` raises the error of vLLM's update, if that has failed."""

    def __init__(self, socket: Any, updating: Any):
        self._socket, self._updating = socket, updating

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def recv(self) -> bytes:
        while not self._socket.poll(PATIENCE):
            if self._updating is not None and ray.wait([self._updating], timeout=0)[0]:
                ray.get(self._updating)
        return self._socket.recv()

    def close(self) -> None:
        self._socket.close(linger=0)
