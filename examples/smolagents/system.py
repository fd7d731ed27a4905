"""Trains program.py: the orchestrator and the code agent learn, the other workers help. Programs run in the sandbox."""

from __future__ import annotations

from examples.smolagents.program import WORKERS, work
from verl_ext.gateway import Endpoint, GatewayWorkflow
from verl_ext.mas import Agent, Task


class Orchestrated(GatewayWorkflow):
    """Shared reward: is the answer right."""

    agents = {"orchestrator": Agent(), **{name: Agent(trained=name == "run_python") for name in WORKERS}}
    headline = "accuracy"
    needs = ("run_python", "web_search")

    def program(self, task: Task, endpoint: Endpoint) -> str:  # no coroutine: smolagents is synchronous
        def execute(code: str) -> str:
            return str(endpoint.tool("run_python", program=code))

        def search(query: str) -> str:
            return str(endpoint.tool("web_search", queries=[query]))

        return work(task.question, execute, search, endpoint.base_url, endpoint.api_key)

    def reward(self, task: Task, result: str) -> tuple[float, dict[str, float]]:
        correct = float(result in task.ground_truth["target"])
        return correct, {"accuracy": correct}
