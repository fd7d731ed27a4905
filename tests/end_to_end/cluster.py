"""Several Ray nodes on this machine, each with a folder of its own in which its processes start."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from ray.cluster_utils import Cluster

from tests.end_to_end.running import environment, preloaded
from verl_ext.engine import preload

# Processes of Ray's that no run has started.
IDLE = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")


class Nodes:
    """A Ray cluster whose head is there already.

    Args:
        folder: holds the folders of the nodes.
        without_head: seconds after which a node ends that has lost the head; 60 are Ray's own.
    """

    def __init__(self, folder: Path, without_head: int = 60):
        self.folder, self.cluster = folder, Cluster()
        self._names: dict[str, str] = {}
        settings = {"enable_worker_prestart": False, "gcs_rpc_server_reconnect_timeout_s": without_head}
        self.add("head", num_cpus=8, include_dashboard=False, _system_config=settings)

    def add(self, name: str, core: int | None = None, data: Path | None = None, **resources: Any) -> None:
        """Start a node.

        Args:
            core: the only one of its processes; None: all.
            data: a folder that it gets a copy of.
        """
        place, before, cores = self.folder / name, Path.cwd(), os.sched_getaffinity(0)
        place.mkdir(parents=True, exist_ok=True)
        if data is not None:
            shutil.copytree(data, place / data.name, dirs_exist_ok=True)
        os.chdir(place)
        os.sched_setaffinity(0, cores if core is None else {core})
        try:
            self._names[self.cluster.add_node(**resources).node_id] = name
        finally:
            os.chdir(before)
            os.sched_setaffinity(0, cores)

    def id_of(self, name: str) -> str:
        """What Ray calls a node."""
        return next(one for one, known in self._names.items() if known == name)

    def kill(self, name: str) -> None:
        """Kill -9 the node's raylet and its workers, which all are in its folder."""
        place = str(self.folder / name)
        for process in [one for one in psutil.process_iter(["cwd"]) if one.info["cwd"] == place]:
            process.kill()

    def kill_part(self, part: str) -> None:
        """Kill -9 the `raylet` or the `gcs_server` of the head, or else the actors of this class."""
        if daemons := self.cluster.head_node.all_processes.get(part):
            daemons[0].process.kill()
            return
        found = self.actors(part)
        assert found, f"there is no {part}"
        for process in found:
            process.kill()

    def actors(self, name: str = "") -> list[psutil.Process]:
        """The processes of actors on all nodes, or only those of a class."""
        for daemons in [some for node in self.cluster.list_all_nodes() for some in node.all_processes.values()]:
            daemons[0].process.poll()  # a dead one must be no zombie: its workers take that for a raylet that lives
        found = psutil.process_iter(["cwd", "cmdline"])
        titles = {
            one: "".join(one.info["cmdline"] or [])
            for one in found
            if str(one.info["cwd"]).startswith(f"{self.folder}/")
        }
        return [one for one, title in titles.items() if title.startswith(f"ray::{name}") and not title.startswith(IDLE)]

    def places(self, name: str) -> list[str]:
        """The nodes of the living actors whose name, or else class, has a match for this expression, in order."""
        table = self.cluster.global_state.actor_table(None).values()
        found = [one for one in table if re.search(name, one["Name"] or one["ActorClassName"])]
        return sorted(self._names[one["Address"]["NodeID"]] for one in found if one["State"] == "ALIVE")

    @property
    def overrides(self) -> list[str]:
        """Let a run join the cluster. Its processes are forks, on every node, which saves half a minute a run."""
        workers = preload.command_of_workers(preload.address_of(preloaded()))
        init = {"address": self.cluster.address, "runtime_env.py_executable": f"'{workers}'"}
        return [f"ray_kwargs.ray_init.{name}={value}" for name, value in init.items()]

    def close(self) -> None:
        """End all nodes."""
        self.cluster.shutdown()


@contextmanager
def ray_nodes(folder: Path, **settings: Any) -> Iterator[Nodes]:
    """A cluster for the time of a block, in which processes have the environment of running.py."""
    before = dict(os.environ)
    os.environ.update(environment())
    nodes = Nodes(folder, **settings)
    try:
        yield nodes
    finally:
        nodes.close()
        os.environ.clear()
        os.environ.update(before)


def until(happened: Callable[[], Any], alive: Callable[[], bool], what: str) -> Any:
    """Wait until `happened` gives something, and return it; as long as `alive`."""
    while not (found := happened()):
        assert alive(), f"the run ended before {what}"
        time.sleep(0.02)
    return found
