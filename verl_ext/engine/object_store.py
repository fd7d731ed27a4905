"""Weights over Ray's object store, from the trainer's ranks to rollout replicas on ranks of their own.

`actor_rollout_ref.rollout.checkpoint_engine.backend=object_store`, for which `custom_backend_module` names this module.
It needs no accelerator. The first rank sends parcels of tensors; every rank of the replicas reads them all, in order.
The last parcel has the step and the fingerprints of what was sent, which the readers compare with what they got. Each
policy (`mas.policies`) has a mailbox of its own, and its name is part of the fingerprints.
"""

from __future__ import annotations

import zlib
from typing import Any, ClassVar

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from verl.workers.rollout.utils import ensure_async_iterator

from verl_ext.engine.fingerprints import fingerprint
from verl_ext.engine.mailbox import Mailbox

# Bytes of a parcel at most: a checkpoint need not fit into the object store.
LARGEST = 256 << 20


@CheckpointEngineRegistry.register("object_store")
class ObjectStoreEngine(CheckpointEngine):
    """One end of the way: a training rank, or a rank of a replica.

    Args:
        bucket_size: bytes of a parcel, but LARGEST at most.
        is_master: this is the rank that sends.
        policy: whose weights; "" in a run with one.
    """

    _mailboxes: ClassVar[dict[str, Any]] = {}

    def __init__(self, bucket_size: int, is_master: bool = False, policy: str = "") -> None:
        self.size, self.is_master, self.policy = min(bucket_size, LARGEST), is_master, policy
        self.mailbox: Any = None
        self.reader = -1

    def prepare(self) -> dict[str, Any]:
        """Whose weights this rank sends or takes."""
        return {"policy": self.policy}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """The policy's mailbox for all, on this node, and a number for each reader. Called in the trainer's process.

        Raises:
            RuntimeError: the ranks are of several policies.
        """
        policies = {one["policy"] for one in metadata}
        if len(policies) > 1:
            raise RuntimeError(f"weights would go from one policy to another: {', '.join(sorted(policies))}")
        (policy,) = policies
        if policy not in cls._mailboxes:
            # Ray would start it on any node, and without it the run cannot go on.
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
            cls._mailboxes[policy] = ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()
        mailbox = cls._mailboxes[policy]
        ray.get(mailbox.open.remote(rollout_world_size))
        senders = {"mailbox": [mailbox] * actor_wg_world_size, "reader": [-1] * actor_wg_world_size}
        readers = list(range(rollout_world_size))
        return senders, {"mailbox": [mailbox] * rollout_world_size, "reader": readers}

    def init_process_group(self, **kwargs: Any) -> None:
        """Take what `build_topology` has for this rank."""
        self.mailbox, self.reader = kwargs["mailbox"], kwargs["reader"]

    def finalize(self) -> None:
        """Forget the mailbox."""
        self.mailbox = None

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> dict[str, float]:
        """Send (name, tensor) pairs, whose iteration is collective. Returns metrics of the trainer."""
        parcel: list[tuple[str, torch.Tensor]] = []
        number = filled = total = 0
        sum_ = zlib.crc32(self.policy.encode())
        async for name, tensor in ensure_async_iterator(weights):
            if not self.is_master:
                continue
            whole = tensor.detach().to("cpu", copy=True)  # a producer may use its buffer again
            parcel.append((name, whole))
            filled, total, sum_ = filled + whole.nbytes, total + whole.nbytes, sum_ ^ fingerprint(name, whole)
            if filled >= self.size:
                await self._put(number, parcel)
                number, filled, parcel = number + 1, 0, []
        if not self.is_master:
            return {}
        await self._put(number, parcel)
        await self._put(number + 1, (global_steps, sum_))
        return {"update/sent_mb": total / 1e6}

    async def _put(self, number: int, parcel: Any) -> None:
        # In a list: Ray would replace a plain argument by its value, and the mailbox would hold the tensors themselves.
        await self.mailbox.put.remote(number, [ray.put(parcel)])

    async def receive_weights(self, global_steps: int | None = None) -> Any:
        """The (name, tensor) pairs that were sent, asynchronously.

        Raises:
            RuntimeError: they are of another step, or not what was sent.
        """
        number, found = 0, zlib.crc32(self.policy.encode())
        while True:
            (reference,) = await self.mailbox.take.remote(self.reader, number)
            parcel = await reference
            if isinstance(parcel, tuple):
                break
            for name, tensor in parcel:
                found ^= fingerprint(name, tensor)
                yield name, tensor
            number += 1
        step, sent = parcel
        if (step, sent) != (global_steps, found):
            raise RuntimeError(
                f"the rollout engine asked for the weights of step {global_steps} and got those of step {step}"
                if step != global_steps
                else f"the weights of step {step} that arrived at the rollout engine are not those that were sent"
            )
