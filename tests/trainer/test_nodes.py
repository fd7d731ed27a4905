"""Runs on a Ray cluster: rollout workers that die are replaced, and what such a run asks of the cluster."""

from __future__ import annotations

import re
import socket
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorUnavailableError
from verl.workers.rollout.replica import RolloutMode

from tests.trainer.test_recipes import composed
from verl_ext.trainer import nodes, ranks
from verl_ext.trainer.policies.fan import WorkerGroups
from verl_ext.trainer.rollout import agent_loop, remote_workers
from verl_ext.trainer.rollout.agent_loop import MultiAgentLoopManager
from verl_ext.trainer.rollout.remote_workers import RemoteWorkers

DEAD = ActorUnavailableError("RpcError: Socket closed", None)


class Worker:
    """A rollout worker as a Ray actor: calls are recorded, and raise once it is dead."""

    def __init__(self, number):
        self.number, self.dead, self.calls = number, False, []

    def __getattr__(self, method):
        def remote(*arguments):
            self.calls.append((method, *arguments))
            return DEAD if self.dead else f"{method} of {self.number}"

        return SimpleNamespace(remote=remote)

    def sampled(self):
        """The questions that it was given."""
        return [one["uid"] for call in self.calls if call[0] == "submit" for one in call[1]]


class Queue:
    """The part of TransferQueue that is used: partition -> key -> tag."""

    def __init__(self):
        self.tags = {"train": {}, "val": {}}

    def put(self, partition="train", **statuses):
        self.tags[partition] |= {key: {"status": status} for key, status in statuses.items()}

    def kv_list(self, partition):
        return {partition: self.tags[partition]}

    def kv_clear(self, keys, partition_id):
        for key in keys:
            del self.tags[partition_id][key]

    def kv_batch_put(self, keys, tags, partition_id):
        self.tags[partition_id] |= dict(zip(keys, tags, strict=True))


@pytest.fixture
def queue(monkeypatch):
    def get(answer, timeout=None):
        if isinstance(answer, list):
            return [get(one) for one in answer]
        if isinstance(answer, Exception):
            raise answer
        return answer

    made = Queue()
    monkeypatch.setattr(remote_workers, "ray", SimpleNamespace(get=get, kill=lambda worker: None))
    monkeypatch.setattr(remote_workers, "tq", made)
    monkeypatch.setattr(agent_loop, "tq", made)
    monkeypatch.setattr(nodes, "this_node", dict)
    monkeypatch.setattr(nodes, "place_of_rollout_workers", dict)
    monkeypatch.setattr(RemoteWorkers, "_start", lambda self, place: Worker(next(self._names)))
    return made


def questions(*uids):
    return [{"uid": uid} for uid in uids]


def test_all_questions_of_a_dead_worker_are_sampled_anew_and_only_those(queue):
    workers = RemoteWorkers(None, None, 2)
    workers.ask("set_memory", "as of step 3")
    workers.submit(questions("a", "b", "c", "d"), validate=False)
    other, dead = workers._workers
    # One of its questions has ended; of the other it was storing the rows.
    queue.put(a="finished", a_0_0="row", b="finished", b_0_0="row", b_1_0="row", c="running", d="running", d_0_0="row")
    dead.dead = True
    assert workers.looks() == ["look of 0"]
    assert workers.news() == [f"rollout worker 1 died, and a new one takes its place: {DEAD}"] and not workers.news()
    workers.replace()
    assert workers._workers[0] is other and other.sampled() == ["a", "c"]
    fresh = workers._workers[1]
    assert fresh.number == 2 and fresh.sampled() == ["b", "d"] and ("set_memory", "as of step 3") in fresh.calls
    assert {key: tag["status"] for key, tag in queue.tags["train"].items()} == {
        **{"a": "finished", "a_0_0": "row", "c": "running"},
        **{"b": "pending", "d": "pending"},
    }
    workers.taken(["a", "b", "c", "d"])
    workers.replace()
    assert workers._workers == [other, fresh], "the dead one was replaced once"


def test_a_worker_that_dies_without_questions_loses_nothing(queue):
    workers = RemoteWorkers(None, None, 1)
    queue.put(a="finished", empty="failure")
    workers.submit(questions("a", "empty"), validate=False)
    queue.tags["train"].clear()  # verl has taken both
    workers.taken(["a"])
    workers._workers[0].dead = True
    queue.put(b="pending")
    workers.submit(questions("b"), validate=False)
    workers.replace()
    assert workers._workers[0].sampled() == ["b"]


def test_a_run_does_not_go_on_without_the_statistics_of_rows_that_were_taken(queue):
    workers = RemoteWorkers(None, None, 1)
    queue.put(a="running")
    workers.submit(questions("a"), validate=False)
    workers._workers[0].dead = True
    workers.ask("take_stats", ["a"])
    with pytest.raises(RuntimeError, match=r"what it had counted of 1 question\(s\).*Socket closed"):
        workers.taken(["a"])
    queue.tags["train"].clear()
    with pytest.raises(RuntimeError, match=r"what it had counted of 1 question\(s\)"):
        workers.replace()


def test_a_new_worker_gets_what_the_dead_one_held_of_a_checkpoint(queue):
    workers, held = MultiAgentLoopManager.__new__(MultiAgentLoopManager), SimpleNamespace(empty=False)
    workers._local, workers._remote = None, RemoteWorkers(None, None, 1)
    queue.put(a="finished", a_0_0="row", b="finished", b_0_0="row")
    workers.restore({"a": held, "b": held})
    workers._remote.taken(["a"])
    workers._remote._workers[0].dead = True
    workers._remote.looks()
    workers._remote.replace()
    fresh = workers._remote._workers[0]
    assert ("restore", {"b": held}) in fresh.calls and not fresh.sampled()
    assert queue.tags["train"]["b"]["status"] == "finished" and "b_0_0" in queue.tags["train"]
    fresh.dead = True
    workers._remote.ask("take_stats", ["b"])
    with pytest.raises(RuntimeError, match=r"what it had counted of 1 question\(s\)"):
        workers._remote.taken(["b"])


def test_workers_that_die_again_and_again_end_the_run(queue):
    workers = RemoteWorkers(None, None, 1)
    queue.put("val", a="running")
    workers.submit(questions("a"), validate=True)
    with pytest.raises(RuntimeError, match="4 rollout workers died within one step; .*outgrows the memory"):
        for _ in range(4):
            workers._workers[0].dead = True
            workers.looks()
            workers.replace()


def test_a_run_that_joins_a_cluster_brings_no_resources_of_its_own():
    config = composed("+recipe=mhgpo_tiny", "ray_kwargs.ray_init.address=10.0.0.1:6379")
    nodes.join(config)
    init = config.ray_kwargs.ray_init
    assert (init.num_cpus, init.num_gpus, init.get("_system_config")) == (None, None, None)
    assert config.trainer.default_local_dir.startswith("/")
    local = composed("+recipe=mhgpo_tiny")
    nodes.join(local)
    assert local.ray_kwargs.ray_init.num_cpus == 16 and local.trainer.default_local_dir == "runs/mhgpo_tiny"


@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        ([{"CPU": 16, "GPU": 1}, {"CPU": 4}], r"but 1 node\(s\) of the Ray cluster have as many: there are 1, 0 "),
        ([{"CPU": 3, "GPU": 1}, {"CPU": 3, "GPU": 2}], r"have 3 \+ 3 logical CPUs, and the run takes 9 "),
    ],
)
def test_a_cluster_that_is_too_small_is_refused(cluster, says, monkeypatch):
    found = [{"Alive": True, "Resources": one} for one in cluster] + [{"Alive": False, "Resources": {"GPU": 8}}]
    monkeypatch.setattr(nodes, "ray", SimpleNamespace(nodes=lambda: found, is_initialized=lambda: True))
    with pytest.raises(ValueError, match=says):
        nodes.check_cluster(composed("+recipe=mhgpo_tiny", "trainer.nnodes=2"))


def test_a_cluster_without_gpus_for_the_rollouts_of_each_policy_is_refused(monkeypatch):
    two = [
        f"+mas.policies.{name}={{agents: [{agents}]}}"
        for name, agents in (("a", "rewriter, reranker"), ("b", "answerer"))
    ]
    config = composed("+recipe=mhgpo_tiny", "trainer.v1.trainer_mode=mas_separate_async", *two)
    found = [{"Alive": True, "Resources": one} for one in ({"CPU": 16, "GPU": 1}, {"CPU": 2, "GPU": 1})]
    monkeypatch.setattr(nodes, "ray", SimpleNamespace(nodes=lambda: found, is_initialized=lambda: True))
    with pytest.raises(ValueError, match="training takes 1 and the rollouts 2 GPUs of their own .* have 1, 1 "):
        nodes.check_cluster(config)
    found.append({"Alive": True, "Resources": {"CPU": 2, "GPU": 1}})
    nodes.check_cluster(config)


@pytest.mark.parametrize(
    ("dead", "says"),
    [
        ("gcs", r"Ray's head has died: its GCS server \(127.0.0.1:\d+\).*\n.* Remedy: `ray stop` on all nodes"),
        ("raylet", r"the Ray node of this command has died, and the trainer with it: .*\nRemedy: `ray stop` here"),
        ("none", r"verl's task runner, in which the trainer is, died: .*Socket closed.*\nRemedy: see the workers'"),
    ],
)
def test_what_has_died_where_the_trainer_has(dead, says, monkeypatch):
    ports = {name: socket.create_server(("127.0.0.1", 0)) for name in ("gcs", "raylet")}
    numbers = {name: server.getsockname()[1] for name, server in ports.items()}
    if dead in ports:
        ports[dead].close()
    context = SimpleNamespace(gcs_address=f"127.0.0.1:{numbers['gcs']}", get_node_id=lambda: "here")
    here = {"NodeID": "here", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": numbers["raylet"]}
    fake = SimpleNamespace(get_runtime_context=lambda: context, nodes=lambda: [{"NodeID": "other"}, here])
    monkeypatch.setattr(nodes, "ray", fake)
    assert re.match(says, nodes.lost_runner(DEAD))
    assert bool(nodes.lost_head()) is (dead == "gcs")
    for server in ports.values():
        server.close()


class Asked:
    """An actor that may be dead."""

    def __init__(self, dead=False):
        self.__ray_call__ = SimpleNamespace(remote=lambda function: DEAD if dead else None)


def test_a_process_that_dies_is_named_with_its_policy(monkeypatch):
    def replica(policy, mode, dead=False):
        config = {"custom": {"policy": policy}} if policy else {}
        actors = {"servers": [Asked(dead)], "workers": [Asked()]}
        return SimpleNamespace(replica_rank=0, config=config, rollout_mode=mode, **actors)

    def manager(*replicas):
        return SimpleNamespace(rollout_replicas=list(replicas))

    managers = [
        manager(),
        manager(replica("small", RolloutMode.STANDALONE), replica("large", RolloutMode.STANDALONE, dead=True)),
        manager(replica("", RolloutMode.HYBRID)),
    ]
    groups = {"small": SimpleNamespace(_workers=[Asked(), Asked()]), "large": SimpleNamespace(_workers=[Asked()])}
    several = ranks.training_processes(WorkerGroups(groups, saved=[]))
    assert list(several) == ["rank 0 of small", "rank 1 of small", "rank 0 of large"]
    assert list(ranks.training_processes(groups["small"])) == ["rank 0", "rank 1"]
    servers = ranks.rollout_servers(managers)
    assert list(servers) == [
        *("rollout server 0 of small", "rank 0 of rollout server 0 of small"),
        *("rollout server 0 of large", "rank 0 of rollout server 0 of large"),
        "rollout server 0",
    ]

    def get(answer):
        if isinstance(answer, Exception):
            raise answer

    monkeypatch.setattr(nodes, "ray", SimpleNamespace(wait=lambda asked, **_: (asked, []), get=get))
    assert nodes.Pings(servers, "Remedy: …").lost() == f"rollout server 0 of large died: {DEAD}\nRemedy: …"
