"""A run on a Ray cluster: what has its place on the driver's node, and who notices that a node has died.

On the driver's node are the task runner, which writes logs and checkpoints that the driver reads, TransferQueue's
controller, and the mailboxes through which weights go to rollouts on ranks of their own. Training processes, rollout
servers and rollout workers may be on any node.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf, open_dict
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from verl_ext.trainer import modes
from verl_ext.trainer.preflight.machine import logical_cpus

# Arguments of `ray.init` that describe a new Ray instance: it refuses them together with an address.
OF_NEW = ("num_cpus", "num_gpus", "resources", "labels", "object_store_memory", "_system_config")
# Nodes that have this resource take the rollout workers, if any has: ray start --resources='{"rollout": 1}'.
RESOURCE = "rollout"
# Seconds within which the loss of a connection to an actor shows.
BROKEN = 2.0
# Seconds for a connection to Ray's own processes.
TAKEN = 5.0
# The names of TransferQueue's actors, and the namespace of the first one.
QUEUE, UNIT, QUEUE_NAMESPACE = "TransferQueueController", "TransferQueueStorageUnit#", "transfer_queue"


def join(config: DictConfig) -> None:
    """Prepare the configuration of a run that is given a Ray cluster: `ray.init` takes no resources then.

    The folder of the run becomes absolute: processes on other nodes start in other folders.
    """
    address = OmegaConf.select(config, "ray_kwargs.ray_init.address") or os.environ.get("RAY_ADDRESS")
    if not address or address == "local":
        return
    with open_dict(config):
        for name in OF_NEW:
            if OmegaConf.select(config, f"ray_kwargs.ray_init.{name}") is not None:
                config.ray_kwargs.ray_init[name] = None
        folder = str(config.trainer.default_local_dir)
        if "://" not in folder:
            config.trainer.default_local_dir = str(Path(folder).absolute())


class OnThisNode:
    """An actor class whose actors start on the node of the process that makes them. Ray would choose any node."""

    def __init__(self, actor_class: Any, **options: Any):
        self._actor_class, self._options = actor_class, options

    def options(self, **options: Any) -> OnThisNode:
        """The same with further options of Ray's."""
        return OnThisNode(self._actor_class, **self._options, **options)

    def remote(self, *arguments: Any, **named: Any) -> Any:
        """Start an actor."""
        return self._actor_class.options(**self._options, **this_node()).remote(*arguments, **named)


def this_node() -> dict[str, Any]:
    """Ray's options for an actor on the node of this process, also where no logical CPU is left."""
    node = ray.get_runtime_context().get_node_id()
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False), "num_cpus": 0}


def keep_task_runner_here() -> None:
    """Let verl start its task runner on the driver's node."""
    main = vars(sys.modules["__main__"])
    if "TaskRunnerV1" in main:
        main["TaskRunnerV1"] = OnThisNode(main["TaskRunnerV1"])


def keep_balancer_here() -> None:
    """Let verl start the load balancer of its rollout servers on the trainer's node."""
    from verl.workers.rollout import router

    if router.ray is ray:
        vars(router)["ray"] = SimpleNamespace(remote=lambda cls: OnThisNode(ray.remote(cls)), actor=ray.actor)


def place_of_rollout_workers() -> dict[str, Any]:
    """Ray's options for rollout workers: on the nodes that are meant for them, if there are such, else on all."""
    wanted = {"resources": {RESOURCE: 0.001}} if ray.cluster_resources().get(RESOURCE) else {}
    return {"scheduling_strategy": "SPREAD", **wanted}


def check_cluster(config: DictConfig) -> None:
    """Check that the cluster has what the run takes; Ray would wait for it for ever.

    Raises:
        ValueError: too few nodes with enough GPUs (on the CPU: tokens, one a rank), or too few logical CPUs.
    """
    if not ray.is_initialized():
        return
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    ranks, wanted, needed = config.trainer.n_gpus_per_node, config.trainer.nnodes, logical_cpus(config)
    fitting = [one for one in nodes if one.get("GPU", one.get("NPU", 0)) >= ranks]
    cpus = [f"{one.get('CPU', 0):g}" for one in nodes]
    given = [one.get("GPU", one.get("NPU", 0)) for one in nodes]
    gpus = ", ".join(f"{number:g}" for number in given)
    if len(fitting) < wanted:
        raise ValueError(
            f"trainer.nnodes={wanted} with trainer.n_gpus_per_node={ranks}, but {len(fitting)} node(s) of the Ray "
            f"cluster have as many: there are {gpus} (on the CPU: logical GPUs, one a rank). Remedy: start more nodes "
            f"(ray start --address=… --num-gpus={ranks}), or lower trainer.nnodes or trainer.n_gpus_per_node"
        )
    if (pool := modes.rollout_ranks(config)) and sum(given) < wanted * ranks + pool:
        raise ValueError(
            f"training takes {wanted * ranks} and the rollouts {pool} GPUs of their own (actor_rollout_ref.rollout."
            f"nnodes × n_gpus_per_node, for each policy), and the nodes of the Ray cluster have {gpus} (on the CPU: "
            "logical GPUs, one a rank). Remedy: start more nodes (ray start --address=… --num-gpus=1), or lower one of "
            "these settings"
        )
    if sum(one.get("CPU", 0) for one in nodes) < sum(needed.values()):
        parts = ", ".join(f"{name} {number}" for name, number in needed.items())
        raise ValueError(
            f"the nodes of the Ray cluster have {' + '.join(cpus)} logical CPUs, and the run takes "
            f"{sum(needed.values())} ({parts}). Ray would wait for ever. Remedy: ray start with a larger --num-cpus "
            "(no need for as many cores)"
        )


class Pings:
    """Notices that an actor's process, or its node, has died: a question to it breaks with the connection.

    A question waits in the actor's queue while the actor works, so a busy actor is no lost one. All methods may be
    called from any thread.

    Args:
        actors: Ray actors by what they are called in messages.
        advice: ends the message.
    """

    def __init__(self, actors: dict[str, Any], advice: str):
        self._actors, self._advice = actors, advice
        self._asked: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._lost = ""

    def lost(self, seconds: float = BROKEN) -> str:
        """Which actor has died, in words, as far as that shows within `seconds`; nothing if all live."""
        with self._lock:
            if self._lost:
                return self._lost
            for name, actor in self._actors.items():
                if name not in self._asked:
                    self._asked[name] = actor.__ray_call__.remote(_answer)
            done, _ = ray.wait(list(self._asked.values()), num_returns=len(self._asked), timeout=seconds)
            for name in [name for name, question in self._asked.items() if question in done]:
                try:
                    ray.get(self._asked.pop(name))
                except RayActorError as error:
                    self._lost = self._lost or f"{name} died: {first_line(error)}\n{self._advice}"
            return self._lost


def queue_processes() -> dict[str, Any]:
    """TransferQueue's actors by what messages call them; its other backends have no storage units."""
    units = sorted(name for name in ray.util.list_named_actors() if name.startswith(UNIT))
    return {
        "TransferQueue's controller": ray.get_actor(QUEUE, namespace=QUEUE_NAMESPACE),
        **{f"TransferQueue's storage unit {name.removeprefix(UNIT)}": ray.get_actor(name) for name in units},
    }


def lost_head() -> str:
    """That Ray's head has died, in words. Ray itself waits a minute for it, as for a machine out of reach."""
    address = ray.get_runtime_context().gcs_address
    if not _refuses(address):
        return ""
    return (
        f"Ray's head has died: its GCS server ({address}) refuses connections\nNo run goes on without it. "
        "Remedy: `ray stop` on all nodes, then start the cluster again (ray start --head, ray start --address=…)"
    )


def lost_runner(error: RayActorError) -> str:
    """Why verl's task runner has died, in words, for the driver, whose node it shares."""
    if head := lost_head():
        return head
    here = ray.get_runtime_context().get_node_id()
    node = next(one for one in ray.nodes() if one["NodeID"] == here)
    address = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
    if not _refuses(address):
        return (
            f"verl's task runner, in which the trainer is, died: {first_line(error)}\nRemedy: see the workers' logs; a "
            "process that outgrows the memory of its machine is killed by the kernel (dmesg)"
        )
    return (
        f"the Ray node of this command has died, and the trainer with it: its raylet ({address}) refuses connections\n"
        "Remedy: `ray stop` here, then start the node again (ray start --address=…; if it was the head, all nodes)"
    )


def _refuses(address: str) -> bool:
    """Whether nobody listens there any more. A machine that is out of reach may come back."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), TAKEN).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        pass
    return False


def _answer(actor: Any) -> None:
    """Runs in the actor."""


def first_line(error: Exception) -> str:
    """The first line of what Ray says of a dead actor."""
    return str(error).strip().splitlines()[0]


@contextmanager
def between_polls(replay_buffer: Any, work: Any) -> Iterator[None]:
    """Call `work` in the trainer's thread whenever verl waits for rows: nobody else changes the queue's groups then."""
    stock = replay_buffer._wait_for_next_poll

    def wait(*arguments: Any) -> Any:
        work()
        return stock(*arguments)

    replay_buffer._wait_for_next_poll = wait
    try:
        yield
    finally:
        replay_buffer._wait_for_next_poll = stock
