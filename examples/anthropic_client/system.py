"""Trains program.py, which asks Anthropic's messages API."""

from __future__ import annotations

from examples.anthropic_client.program import solve
from verl_ext.gateway import Endpoint, GatewayWorkflow
from verl_ext.mas import Agent, Task


class MessagesClient(GatewayWorkflow):
    """Shared reward: is the last total the right one."""

    agents = {"solver": Agent(), "verifier": Agent()}
    headline = "em"

    async def program(self, task: Task, endpoint: Endpoint) -> str:
        return await solve(task.question, endpoint.url, endpoint.api_key)

    def reward(self, task: Task, result: str) -> tuple[float, dict[str, float]]:
        correct = float(result.split()[-1:] == list(task.ground_truth["target"]))
        return correct, {"em": correct}
