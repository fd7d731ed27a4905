"""A training over Ray nodes: equal to that on one node, also where nodes die in the middle, or what all nodes share."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.bench.ctrlc import logged
from tests.end_to_end.cluster import Nodes, ray_nodes, until
from tests.end_to_end.running import command, entries, environment, lasting, records, run
from verl_ext.storage.jsonl import read_log
from verl_ext.tools.retrieval import SearchTool
from verl_ext.tools.retrieval.search import search_tool

pytestmark = pytest.mark.slow

SHORT = [
    *("mas.deterministic=true", "actor_rollout_ref.rollout.agent.num_workers=1"),
    *("trainer.total_training_steps=4", "trainer.test_freq=-1", "trainer.val_before_train=false"),
    "mas.tools.search._target_=tests.end_to_end.test_nodes.search",
]
# Seconds in which the death of a node must be noticed.
NOTICED = 10
# What all nodes share -> what the run says once it has died.
SHARED = {
    "TransferQueueController": r"TransferQueue's controller \(process \d+ on \S+, Ray node \w+\) died: ",
    "gcs_server": r"Ray's head has died: its GCS server \(\S+\) refuses connections",
}


class Searching(SearchTool):
    """The search tool. Where the folder of its process has the file `wait`, it says that it searches, and waits."""

    async def __call__(self, queries: list[str]) -> list[dict[str, str]]:  # type: ignore[override]
        while Path("wait").exists():
            Path("searching").touch()
            await asyncio.sleep(0.1)
        return await super().__call__(queries)


def search(**settings: Any) -> SearchTool:
    """The search tool of a recipe."""
    tool = search_tool(**settings)
    tool.__class__ = Searching
    return tool


def start(nodes: Nodes, log: Path) -> subprocess.Popen[str]:
    """Start the training on two nodes with a rank each, and a third one for the rollout worker and its tool."""
    two = ["trainer.nnodes=2", "trainer.n_gpus_per_node=1", "+mas.tools.search.once_per_node=true"]
    with open(log, "w") as output:
        return subprocess.Popen(
            command(*SHORT, *two, *nodes.overrides),
            cwd=nodes.folder / "head",
            env=environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )


def said(folder: Path, words: str, run: str = "mhgpo_tiny") -> dict[str, Any] | None:
    """The line with these words that the watchdog has written."""
    file = folder / "runs" / run / "watchdog.jsonl"
    return next((line for line in read_log(file) if words in line["text"]), None) if file.exists() else None


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The folder of the run on a single node, which nothing interrupts."""
    folder = tmp_path_factory.mktemp("alone")
    run(folder, *SHORT, "trainer.n_gpus_per_node=2")
    assert len(entries(folder)) == 4
    return folder


@contextmanager
def four_nodes(folder: Path, data: Path, **settings: Any) -> Iterator[Nodes]:
    """The head, two nodes with a rank each, and one for the rollout worker."""
    shutil.copytree(data, folder / "head/data", dirs_exist_ok=True)
    with ray_nodes(folder, **settings) as nodes:
        nodes.add("first", core=0, num_cpus=3, num_gpus=1)
        nodes.add("second", core=1, num_cpus=3, num_gpus=1)
        nodes.add("tools", num_cpus=2, resources={"rollout": 1}, data=data)
        yield nodes


def questions(folder: Path) -> list[tuple[int, int]]:
    """(step, index) of the questions in a run's trajectory log."""
    return [(one["step"], one["question"]["index"]) for one in records(folder)[0]]


@pytest.mark.parametrize(("part", "phase"), [("TransferQueueController", "update"), ("gcs_server", "sampling")])
def test_a_run_without_what_all_nodes_share_ends_and_goes_on_exactly(part, phase, alone, tmp_path):
    """Two runs of their own: no other loses these processes."""
    head, log = tmp_path / "head", tmp_path / "killed.log"
    with four_nodes(tmp_path, alone / "data", without_head=15) as nodes:
        process = start(nodes, log)

        def running() -> bool:
            return process.poll() is None or pytest.fail(log.read_text()[-6000:])

        # In the third step, after the checkpoint of step 2.
        until(lambda: entries(head)[1:], running, "its second step")
        if phase == "sampling":
            (tmp_path / "tools/wait").touch()
            until((tmp_path / "tools/searching").exists, running, "the rollouts of its third step")
        else:
            until(lambda: (3, "train") in logged(head), running, "the update of its third step")
        nodes.kill_part(part)
        killed = time.time()
        assert process.wait(60) == 1
        ended = time.time()
        line, output = said(head, "The run ends"), log.read_text()
        noticed = line["time"] if line else (head / "runs/mhgpo_tiny/error.log").stat().st_mtime
        print(f"{part}: noticed after {noticed - killed:.1f} s, ended after {ended - killed:.1f} s")  # pytest -s
        assert noticed - killed < NOTICED
        reason = rf"The run failed\.\n\w+: {SHARED[part]}.*\n.*Remedy: (.*\n)*.*the same command goes on from .*_step_2"
        assert re.search(reason, output) and "Traceback" not in output, output[-6000:]
        until(lambda: not nodes.actors(), lambda: time.time() - ended < 120, "its processes had ended")
        (tmp_path / "tools/wait").unlink(missing_ok=True)
    with four_nodes(tmp_path, alone / "data") as nodes:
        again = tmp_path / "resumed.log"
        assert start(nodes, again).wait(300) == 0, again.read_text()[-6000:]
    assert [lasting(entry) for entry in entries(head)] == [lasting(entry) for entry in entries(alone)]
    assert questions(head) == questions(alone)


def test_a_training_over_nodes_of_which_two_die_is_the_one_on_a_single_node(alone, tmp_path):
    """Two runs of their own: no other joins a Ray cluster, and each death shows in one that goes on without it."""
    head, expected = tmp_path / "head", [lasting(entry) for entry in entries(alone)]
    with four_nodes(tmp_path, alone / "data") as nodes:
        log = tmp_path / "killed.log"
        process = start(nodes, log)

        def running() -> bool:
            return process.poll() is None or pytest.fail(log.read_text()[-6000:])

        # The node of the rollout worker, in the middle of the rollouts of a step.
        until(lambda: entries(head), running, "its first step")
        (tmp_path / "tools/wait").touch()
        until((tmp_path / "tools/searching").exists, running, "its second step")
        assert nodes.places("tool search") == nodes.places("rollout_worker") == ["tools"]
        nodes.kill("tools")
        killed = time.time()
        told = until(lambda: said(head, "rollout worker 0 died, and a new one"), running, "the worker was missed")
        assert told["time"] - killed < NOTICED
        # The node of a rank, after the checkpoint of step 2.
        until(lambda: entries(head)[2:], running, "its third step")
        nodes.kill("second")
        killed = time.time()
        assert process.wait(60) == 1
        output = log.read_text()
        died = r"RuntimeError: (rank|rollout server) [01] \(process .* died: .*\n.*Remedy: bring its node back"
        assert re.search(died, output)
        assert "mhgpo_tiny/global_step_2" in output
        assert (head / "runs/mhgpo_tiny/error.log").stat().st_mtime - killed < NOTICED
        nodes.add("third", core=1, num_cpus=3, num_gpus=1)
        assert start(nodes, tmp_path / "resumed.log").wait(120) == 0, (tmp_path / "resumed.log").read_text()[-6000:]
    assert [lasting(entry) for entry in entries(head)] == expected
