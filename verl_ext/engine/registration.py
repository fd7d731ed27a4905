"""Makes `actor_rollout_ref.rollout.name=hf` known to verl; imported right after verl's rollout package.

`rollout.name=vllm` becomes verl's vLLM with checked weights and several adapters. In runs without our agent loop it
stays as it is.

This module imports nothing of verl_ext at its top: it runs in the middle of another import.
"""

from __future__ import annotations

from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry


def _load_replica() -> type[RolloutReplica]:
    from verl_ext.engine.hf.replica import HFReplica

    return HFReplica


def _load_vllm_replica() -> type[RolloutReplica]:
    from verl_ext.engine.vllm.server import CheckedReplica

    return CheckedReplica


def register_rollout() -> None:
    """Register the replica (driver side) and the weight sender (in every trainer rank); may be called repeatedly."""
    RolloutReplicaRegistry.register("hf", _load_replica)
    _ROLLOUT_REGISTRY["hf", "async"] = "verl_ext.engine.hf.replica.ServerAdapter"


def register_vllm() -> None:
    """Register our vLLM in front of verl's."""
    RolloutReplicaRegistry.register("vllm", _load_vllm_replica)
    _ROLLOUT_REGISTRY["vllm", "async"] = "verl_ext.engine.vllm.sender.WeightSender"


register_rollout()
register_vllm()
