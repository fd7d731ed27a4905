"""Names that keep the engines of several policies (`mas.policies`) apart: of Ray actors and of sockets.

verl names both by the rank of the replica alone, and every policy's ranks begin at 0: the weights of one policy would
arrive in the server of another, without an error. The name of the policy is in `rollout.custom`, which verl passes on
to replicas, servers and weight senders. Without `mas.policies`, all names are verl's.
"""

from __future__ import annotations

from typing import Any

# Key of `rollout.custom`, and of what a server says of an output.
POLICY = "policy"
# Key of `rollout.custom`: how many policies the run has, whose engines share each machine.
NUMBER = "policies"
# Arguments of checkpoint engines that take the name of the policy whose weights they carry.
ARGUMENTS = {"object_store": "policy", "nccl": "group_name"}
# Tells vLLM's workers, which do not see the rollout's configuration, whose they are.
VARIABLE = "VERL_EXT_POLICY"


def policy_of(rollout: Any) -> str:
    """Name of the policy whose rollout configuration this is; "" in a run without `mas.policies`."""
    return str((rollout.get("custom", None) or {}).get(POLICY) or "")


def number_of(rollout: Any) -> int:
    """How many policies the run has."""
    return int((rollout.get("custom", None) or {}).get(NUMBER) or 1)


def prefix_of(engine: str, policy: str) -> str:
    """With what the names of a policy's servers begin: `hf_`, or `hf_small_` for the policy `small`."""
    return f"{engine}_{policy}_" if policy else f"{engine}_"


def address_of(handle: str, policy: str) -> str:
    """verl's address of a socket (ipc:///….sock) with the name of the policy in it."""
    return f"{handle.removesuffix('.sock')}-{policy}.sock" if policy else handle
