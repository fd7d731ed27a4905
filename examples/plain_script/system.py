"""Trains solve.py, another process: its two agents are the two names by which it asks for models."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from verl_ext.gateway import Endpoint, GatewayWorkflow
from verl_ext.mas import Agent, Task

SCRIPT = Path(__file__).with_name("solve.py")


class PlainScript(GatewayWorkflow):
    """Shared reward: is the last number that the script prints the right one."""

    agents = {"solver": Agent(), "verifier": Agent()}
    headline = "em"

    def program(self, task: Task, endpoint: Endpoint) -> str:
        server = {"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": endpoint.api_key}
        # -S: without site-packages, which it does not use, a process starts faster.
        command = [sys.executable, "-S", str(SCRIPT), task.question]
        return subprocess.run(command, env=os.environ | server, capture_output=True, text=True, check=True).stdout

    def reward(self, task: Task, result: str) -> tuple[float, dict[str, float]]:
        correct = float(result.split()[-1:] == list(task.ground_truth["target"]))
        return correct, {"em": correct}
