"""A training process hangs, or a process dies without which a run cannot go on: its end, with the reason.

Of training processes on the trainer's machine it says what they do meanwhile.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
import ray
from verl.trainer.ppo.v1 import trainer_base, trainer_colocate_async, trainer_separate_async, trainer_sync
from verl.workers.rollout.replica import RolloutMode

from verl_ext.engine.policy_names import policy_of
from verl_ext.trainer.nodes import BROKEN, Pings, lost_head, queue_processes
from verl_ext.trainer.policies.fan import WorkerGroups
from verl_ext.trainer.rollout.phases import Phases

if TYPE_CHECKING:
    from verl_ext.trainer.rollout.agent_loop import MultiAgentLoopManager
    from verl_ext.trainer.sections import LimitsSection

LOST = (
    "The run cannot go on without one of its training processes, rollout servers or parts of TransferQueue. Remedy: "
    "bring its node back into the Ray cluster, or another one (ray start --address=…). If the node is there: a process "
    "that outgrows the memory of its machine is killed by the kernel (dmesg)"
)
# Seconds in which a process writes its stack, and the lines of it that are shown.
WRITTEN, LINES = 1.0, 8
# In the stack of the thread in which Ray carries out a task of verl's; which one it is depends on the version.
WORK = "/verl/single_controller/"


class Rank(NamedTuple):
    """A training process: its host, its number there, and the file to which it writes its stack on SIGUSR1."""

    host: str
    pid: int
    path: str


@contextmanager
def watched(
    manager: MultiAgentLoopManager, limits: LimitsSection, workers: dict[str, Any], servers: dict[str, Any]
) -> Iterator[None]:
    """Let the manager's watchdog watch Ray's head, all processes that the run needs, and the phases of verl's trainer.

    Args:
        workers: see `training_processes`.
        servers: see `rollout_servers`.

    Raises:
        RuntimeError: a phase was ended, because it hung, or one of these processes has died.
    """
    prepared: list[Rank] = ray.get([worker.__ray_call__.remote(_prepare) for worker in workers.values()])
    ranks = dict(zip(workers, prepared, strict=True))
    phases = Phases(limits.warn_after, limits.stop_after, lambda: states(ranks))
    actors = workers | servers | queue_processes()
    places: list[str] = ray.get([actor.__ray_call__.remote(_place) for actor in actors.values()])
    named = {f"{name} ({place})": actor for place, (name, actor) in zip(places, actors.items(), strict=True)}
    pings = Pings(named, LOST)
    manager.watchdog.lost = lambda seconds: lost_head() or pings.lost(seconds)
    try:
        with phases.watched([trainer_base, trainer_sync, trainer_colocate_async, trainer_separate_async]):
            manager.watchdog.phases = phases
            yield
    except (KeyboardInterrupt, Exception):  # of those that live, one may say first that it has lost the other
        manager.raise_if_broken(BROKEN)
        raise
    finally:
        manager.watchdog.phases = None


def training_processes(group: Any) -> dict[str, Any]:
    """The training processes by what messages call them.

    Args:
        group: verl's worker group, or those of several policies.
    """
    groups = group.groups if isinstance(group, WorkerGroups) else {"": group}
    return {
        f"rank {number}{policy and f' of {policy}'}": worker
        for policy, own in groups.items()
        for number, worker in enumerate(own._workers)
    }


def rollout_servers(managers: list[Any]) -> dict[str, Any]:
    """The rollout servers by what messages call them, and the processes that take weights for them on other nodes.

    Args:
        managers: verl's, of all policies.
    """
    found = {}
    for replica in (replica for manager in managers for replica in manager.rollout_replicas):
        policy = policy_of(replica.config)
        name = f"rollout server {replica.replica_rank}{policy and f' of {policy}'}"
        several = len(replica.servers) > 1
        found |= {f"{name}{several and f', part {part}' or ''}": one for part, one in enumerate(replica.servers)}
        if replica.rollout_mode is RolloutMode.STANDALONE:
            found |= {f"rank {number} of {name}": worker for number, worker in enumerate(replica.workers)}
    return found


def _place(actor: Any) -> str:
    """Runs in the actor: its process, its host, and the first letters of the name of its Ray node."""
    return f"process {os.getpid()} on {socket.gethostname()}, Ray node {ray.get_runtime_context().get_node_id()[:8]}"


def states(ranks: dict[str, Rank]) -> str:
    """What the training processes do, in words."""
    return "".join(f"\n{name} {state(rank)}" for name, rank in ranks.items())


def _prepare(actor: Any) -> Rank:
    # faulthandler holds the file; it writes even while the process waits in native code.
    file = tempfile.NamedTemporaryFile("w", prefix="verl_ext_stack_", delete=False)  # noqa: SIM115
    faulthandler.register(signal.SIGUSR1, file=file)
    path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
    if not os.path.exists(path):  # another system than Linux
        return Rank(socket.gethostname(), os.getpid(), file.name)
    os.unlink(file.name)  # so that it goes with the process, however that ends
    return Rank(socket.gethostname(), os.getpid(), path)


def state(rank: Rank) -> str:
    """What a training process does, in words."""
    if rank.host != socket.gethostname():
        return f"(process {rank.pid} on {rank.host}) is on another machine: it was not looked at"
    name = f"(process {rank.pid})"
    try:
        status = psutil.Process(rank.pid).status()
        if status == psutil.STATUS_STOPPED:
            return f"{name} is stopped (SIGSTOP)"
        if status == psutil.STATUS_ZOMBIE:
            return f"{name} has ended"
        with open(rank.path) as file:
            file.seek(0, os.SEEK_END)
            os.kill(rank.pid, signal.SIGUSR1)
            time.sleep(WRITTEN)
            threads = file.read().split("\n\n")
    except (psutil.NoSuchProcess, OSError):
        return f"{name} has ended"
    if not any(threads):
        return f"{name} does not answer"
    if not (busy := [thread for thread in threads if WORK in thread]):
        return f"{name} waits for its next task"
    return f"{name} is here, the innermost call first:\n" + "\n".join(busy[0].splitlines()[1 : LINES + 1])
