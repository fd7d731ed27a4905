"""Trains program.py: the receptionist and both specialists. The model writes native tool calls (hermes)."""

from __future__ import annotations

import json

from examples.openai_agents.program import serve
from verl_ext.gateway import Endpoint, GatewayWorkflow
from verl_ext.mas import Agent, Task
from verl_ext.worlds.shop import APIS


class CustomerService(GatewayWorkflow):
    """Shared reward: does a sum end with the right number, was the right API of a shop called."""

    agents = {"master": Agent(), "math_agent": Agent(), "shop_agent": Agent()}
    headline = "accuracy"
    needs = ("shop_call",)

    async def program(self, task: Task, endpoint: Endpoint) -> str:
        async def call(name: str, arguments: str) -> str:
            result = await endpoint.tool("shop_call", name=name, arguments=json.loads(arguments))
            return f"{name}: {result['result'] if result['ok'] else result['error']}"

        return await serve(task.question, list(APIS), call, endpoint.base_url, endpoint.api_key)

    def reward(self, task: Task, result: str) -> tuple[float, dict[str, float]]:
        truth = task.ground_truth
        if truth["kind"] == "math":
            correct = float(result.split()[-1:] == list(truth["target"]))
        else:
            correct = float(result.partition(":")[0] in truth["functions"])
        return correct, {"accuracy": correct, truth["kind"]: correct}
