"""Makes `actor_rollout_ref.rollout.name=hf` known to verl; imported right after verl's rollout package.

Where VERL_ENGINE_VENDOR asks for adapters per agent, `rollout.name=vllm` is verl's vLLM with several of them.

Import-light, and nothing of ours is imported here: this runs in the middle of whichever import came first.
"""

from __future__ import annotations

import os

from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry


def _load_replica() -> type[RolloutReplica]:
    from verl_ext.engine.hf.replica import HFReplica

    return HFReplica


def _load_vllm_replica() -> type[RolloutReplica]:
    from verl_ext.engine.vllm.server import AdapterReplica

    return AdapterReplica


def register_rollout() -> None:
    """Register the replica (driver side) and the weight sender (in every trainer rank); may be called repeatedly."""
    RolloutReplicaRegistry.register("hf", _load_replica)
    _ROLLOUT_REGISTRY["hf", "async"] = "verl_ext.engine.hf.replica.ServerAdapter"


def register_vllm() -> None:
    """Register vLLM with several adapters in the place of verl's, which has one. Not run: there was no GPU."""
    RolloutReplicaRegistry.register("vllm", _load_vllm_replica)
    _ROLLOUT_REGISTRY["vllm", "async"] = "verl_ext.engine.vllm.sender.AdapterSender"


register_rollout()
if os.environ.get("VERL_ENGINE_VENDOR") == "verl_ext":
    register_vllm()
