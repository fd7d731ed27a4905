"""Adapters per agent on verl's engine: real FSDP2 over gloo, one rank and two, in processes of their own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.conftest import tiny_model

CHECKS = (
    "gradients_are_those_of_separate_models",
    "switching_adapters_mixes_them",
    "engine_paths_agree",
    "half_precision_as_on_cuda",
    "training_is_that_of_separate_models",
    "the_reference_is_the_base",
    "checkpoints",
    "push",
    "refusals",
    "on_cuda_the_vendor_chooses_the_engine",
)


@pytest.fixture(scope="module")
def untied_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama: its embeddings are not tied, so verl builds it without weights on every rank but the first."""
    folder = tmp_path_factory.mktemp("llama") / "model"
    tiny_model("llama").save_pretrained(folder)
    for file in model_dir.glob("tokenizer*"):
        shutil.copy(file, folder)
    return folder


def run(folder: Path, ranks: int) -> list[dict[str, str]]:
    """Per rank: check -> "ok" or the error."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.engine.adapters_program", str(folder)],
            env=os.environ | shared | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    found = []
    for rank, process in enumerate(processes):
        output, errors = process.communicate(timeout=500)
        print(f"--- rank {rank}\n{errors[-3000:]}")  # shown with a failure
        lines = [line.split(" ", 2)[1:] for line in output.splitlines() if line.startswith("RESULT")]
        found.append(dict(lines))
    return found


@pytest.fixture(scope="module")
def one_rank(model_dir: Path) -> list[dict[str, str]]:
    return run(model_dir, 1)


@pytest.fixture(scope="module")
def two_ranks(untied_dir: Path) -> list[dict[str, str]]:
    return run(untied_dir, 2)


@pytest.mark.parametrize("check", CHECKS)
def test_on_one_rank(one_rank, check):
    assert one_rank[0].get(check) == "ok"


@pytest.mark.parametrize("check", CHECKS)
def test_on_two_ranks_that_hold_rows_of_different_agents(two_ranks, check):
    assert [rank.get(check) for rank in two_ranks] == ["ok", "ok"]
