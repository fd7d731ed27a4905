"""Runs a program of this folder, which needs a process group or a fake package, in processes of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path


def results_of(module: str, folder: Path, ranks: int = 1) -> list[dict[str, str]]:
    """Start `python -m tests.engine.<module> <folder>`, one process per rank, and read its lines `RESULT <check> ok`.

    Returns:
        Per rank: check -> "ok" or the error.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    shared |= {"WG_BACKEND": "ray", "VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", f"tests.engine.{module}", str(folder)],
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    found = []
    for rank, process in enumerate(processes):
        output, errors = process.communicate(timeout=500)
        print(f"--- rank {rank}\n{errors[-6000:]}")  # shown with a failure
        found.append(dict(line.split(" ", 2)[1:] for line in output.splitlines() if line.startswith("RESULT")))
    return found
