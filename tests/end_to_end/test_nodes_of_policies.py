"""Two policies over Ray nodes: on the same ranks, and with rollouts on nodes of their own, of which one dies.

Each node has its own copy of the models and of the tool's passages; only checkpoints are in a folder of all.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.bench.kills import waiting
from tests.end_to_end.cluster import Nodes, ray_nodes, until
from tests.end_to_end.other_vocabulary import TINY, other_vocabulary
from tests.end_to_end.running import command, concerns, entries, environment, lasting, records, saved
from tests.end_to_end.running import run as train
from tests.end_to_end.test_nodes import NOTICED, said
from tests.end_to_end.test_policies import policy
from tests.end_to_end.test_policies_async import SEPARATE, of_policy
from verl_ext.doctor import words_of
from verl_ext.worlds import biographies

# A start of Ray nodes and up to three runs, which take three minutes each on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

QUESTIONS, STEPS = 4, 3
POLICIES = {"small": 2, "large": 1}  # with the number of their agents
RUN = [
    policy("small", "rewriter, reranker", Path("tiny")),
    policy("large", "answerer", Path("other"), actor="{optim: {lr: 1e-3}}"),
    f"data.train_batch_size={QUESTIONS}",
    *("trainer.save_freq=1", "trainer.test_freq=-1", "trainer.val_before_train=false"),
    "actor_rollout_ref.rollout.agent.num_workers=1",
    *(f"mas.trajectory_log.train_questions={QUESTIONS}", "mas.trajectory_log.files=100"),
]
BESIDE = [
    SEPARATE,
    "mas.tools.search._target_=tests.end_to_end.test_nodes.search",
    f"trainer.total_training_steps={STEPS}",
    # No row is begun more than one step before, and none is given up.
    *("trainer.v1.sampler.max_off_policy_threshold=2", "trainer.v1.sampler.max_off_policy_strategy=wait"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """What each node has a copy of."""
    folder = tmp_path_factory.mktemp("files")
    shutil.copytree(TINY, folder / "tiny")
    other_vocabulary(folder / "other")
    biographies.ensure(folder / "data" / "tiny_world")
    return folder


@pytest.fixture(scope="module")
def nodes(files, tmp_path_factory) -> Iterator[Nodes]:
    """Three nodes for a rank each, and one for the rollout worker."""
    folder = tmp_path_factory.mktemp("nodes")
    for name in ("head", "first", "second", "third", "fourth", "fifth", "tools"):
        shutil.copytree(files, folder / name)
    with ray_nodes(folder) as nodes:
        for core, name in enumerate(("first", "second", "third")):
            nodes.add(name, core=core % 2, num_cpus=3, num_gpus=1)  # a rank has one thread, as beside another one
        nodes.add("tools", num_cpus=2, resources={"rollout": 1})
        yield nodes


def start(nodes: Nodes, name: str, *overrides: str) -> subprocess.Popen[str]:
    """Start the training in a folder of this name; its output goes into the file `name`.log."""
    place = f"trainer.default_local_dir=runs/{name}"
    with open(nodes.folder / f"{name}.log", "a") as output:
        return subprocess.Popen(
            command(*RUN, place, *overrides, *nodes.overrides),
            cwd=nodes.folder / "head",
            env=environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )


def moved(folder: Path, run: str, name: str, ranks: int) -> list[bool]:
    """Of each rank, whether its part of a policy's weights has changed between steps 1 and 2."""

    def shard(step: int, rank: int) -> dict[str, torch.Tensor]:
        state = saved(folder, step, f"actor/{name}/model_world_size_{ranks}_rank_{rank}.pt", run)
        return {key: getattr(value, "_local_tensor", value) for key, value in state.items()}

    pairs = [(shard(1, rank), shard(2, rank)) for rank in range(ranks)]
    return [any(not torch.equal(one[key], other[key]) for key in one) for one, other in pairs]


def check(nodes: Nodes, files: Path, run: str, steps: int, ranks: int) -> None:
    """Each policy trains on all rows of its agents; the doctor is content; only the head's folder is written to."""
    head = nodes.folder / "head"
    log = {entry["step"]: entry["metrics"] for entry in entries(head, run)}
    assert tuple(log) == tuple(range(1, steps + 1))
    for metrics in log.values():
        for name, agents in POLICIES.items():
            mine = of_policy(name, metrics)
            assert mine["update/rows"] == 4 * QUESTIONS * agents and mine["actor/grad_norm"] > 0
            assert mine["doctor/weights_compared"] == mine["doctor/tokens_checked"] == 1
            assert mine["doctor/unknown_policy"] == mine["doctor/unknown_version"] == 0
            # Of rows that its last weights have sampled.
            assert mine.get("doctor/log_prob_difference_numerical", 0) < 1e-3
    for name in POLICIES:
        assert moved(head, run, name, ranks) == [True] * ranks
    assert concerns(words_of(head / "runs" / run)) == []
    for place in nodes.folder.iterdir():
        if place.is_dir() and place.name != "head":
            written = {one.name for one in place.iterdir()} - {one.name for one in files.iterdir()}
            assert written <= {"searching"}, place


def test_two_policies_on_the_ranks_of_two_nodes_of_which_one_dies(nodes, files, tmp_path):
    """Three runs of their own: no other has several policies with ranks on several nodes."""
    alone, head, log = tmp_path / "alone", nodes.folder / "head", nodes.folder / "sync.log"
    shutil.copytree(files, alone)
    exact = [f"trainer.total_training_steps={STEPS}", "mas.deterministic=true"]
    train(alone, *RUN, "trainer.default_local_dir=runs/sync", "trainer.n_gpus_per_node=2", *exact)
    expected = [lasting(entry) for entry in entries(alone, "sync")]
    process = start(nodes, "sync", "trainer.nnodes=2", *exact)

    def running() -> bool:
        return process.poll() is None or pytest.fail(log.read_text()[-6000:])

    until(lambda: entries(head, "sync"), running, "its first step")
    ranks = nodes.places("WorkerDict")
    for name in POLICIES:
        servers = nodes.places(f"hf_{name}_server")
        assert len({*servers}) == 2 and sorted(2 * servers) == ranks
    assert nodes.places("rollout_worker") == ["tools"]
    until(lambda: entries(head, "sync")[1:], running, "its second step")  # the checkpoint of step 1 is complete
    lost = next(name for name in ("second", "third") if name in ranks)
    nodes.kill(lost)
    killed = time.time()
    assert process.wait(60) == 1
    assert (head / "runs/sync/error.log").stat().st_mtime - killed < NOTICED
    died = r"RuntimeError: (rank|rollout server) [01] of (small|large) \(process .* died: .*\n.*Remedy: bring its node"
    assert re.search(died, log.read_text()), log.read_text()[-6000:]
    nodes.add("fifth", core=1, num_cpus=3, num_gpus=1)
    assert start(nodes, "sync", "trainer.nnodes=2", *exact).wait(300) == 0, log.read_text()[-6000:]
    assert [lasting(entry) for entry in entries(head, "sync")] == expected
    check(nodes, files, "sync", STEPS, 2)


def test_two_policies_beside_their_rollouts_of_which_one_loses_its_node(nodes, files):
    """A run of its own: no other has rollouts on nodes without a training process."""
    head, tools, log = nodes.folder / "head", nodes.folder / "tools", nodes.folder / "beside.log"
    process = start(nodes, "beside", *BESIDE)

    def running() -> bool:
        return process.poll() is None or pytest.fail(log.read_text()[-6000:])

    until(lambda: entries(head, "beside"), running, "its first step")
    (rank, other), (small,), (large,) = [nodes.places(one) for one in ("WorkerDict", "hf_small_s", "hf_large_s")]
    assert rank == other and len({rank, small, large}) == 3
    assert nodes.places("rollout_worker") == ["tools"] and nodes.places("Mailbox") == ["head", "head"]
    # In the middle of rollouts: then all calls of the answerer fail, and with them all questions.
    (tools / "wait").touch()
    until((tools / "searching").exists, running, "its next rollouts")
    nodes.kill(large)
    killed = time.time()
    (tools / "wait").unlink()
    assert process.wait(60) == 1
    ended = time.time()
    # Told by the watchdog, unless the trainer has met it first.
    line = said(head, "rollout server 0 of large (", "beside")
    told = line["time"] if line else (head / "runs/beside/error.log").stat().st_mtime
    print(f"told after {told - killed:.1f} s, ended after {ended - killed:.1f} s")  # shown by pytest -s
    assert told - killed < NOTICED
    output = log.read_text()
    died = r"RuntimeError: .*rollout server 0 of large \(process \d+ on \S+, Ray node (\w+)\) died: .*\n.*Remedy: "
    found = re.search(died, output) or pytest.fail(output[-6000:])
    assert nodes.id_of(large).startswith(found[1])
    nodes.add("fourth", num_cpus=3, num_gpus=1)
    assert start(nodes, "beside", *BESIDE).wait(400) == 0, log.read_text()[-6000:]
    check(nodes, files, "beside", STEPS, 1)
    questions, _ = records(head, "beside")
    trained = [(one["step"], one["question"]["number"], one["question"]["index"]) for one in questions]
    assert sorted((step, number) for step, number, _ in trained) == [
        (step, number) for step in range(1, STEPS + 1) for number in range(QUESTIONS)
    ]
    assert len({index for *_, index in trained}) == QUESTIONS * STEPS, "no question trains twice"
    given = saved(head, STEPS, "data.pt", "beside")["_num_yielded"]
    left = waiting(head / f"runs/beside/global_step_{STEPS}")
    assert given == len(trained) + left, "no question is lost"
