"""Programs in a process of their own, in any language: ProgramWorkflow, which a recipe configures without any code.

    mas:
      workflow:
        _target_: verl_ext.gateway.ProgramWorkflow
        command: [python, my_agent.py]
        agents: [planner, solver]
        reward: my_rewards.score          # (task, result) -> a number, or (a number, {quantity: number})

The process has OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY and VERL_EXT_SEED in its
environment and the task as JSON on its standard input: question, data_source, index, extra. Its result is the last line
that it prints (as JSON, if it is JSON), or what it posts to /v1/result.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from verl_ext.gateway.endpoint import Endpoint
from verl_ext.gateway.workflow import GatewayWorkflow
from verl_ext.mas.agent import Agent
from verl_ext.mas.types import Task
from verl_ext.mas.workflow import Score


class ProgramWorkflow(GatewayWorkflow):
    """A program that is started anew for each trajectory.

    Args:
        command: the program and its arguments.
        agents: names of the agents, first to last. A request's `model` names one.
        reward: module.function, (task, result) -> a number, or a number and quantities to log.
        headline: the quantity that a person watches.
        folder: where the program starts; None: where the training was started.
        environment: variables that it has besides those of this process.

    Raises:
        ValueError: no command, no agents, or no such function.
    """

    def __init__(
        self,
        command: Sequence[str],
        agents: Sequence[str],
        reward: str,
        headline: str = "reward",
        folder: str | None = None,
        environment: Mapping[str, str] | None = None,
    ):
        if isinstance(command, str) or not command:
            raise ValueError(f"mas.workflow.command={command!r} must be a list, e.g. [python, my_agent.py]")
        if isinstance(agents, str) or not agents:
            raise ValueError(f"mas.workflow.agents={agents!r} must be a list of names, e.g. [planner, solver]")
        self.command, self.folder, self.environment = [str(part) for part in command], folder, dict(environment or {})
        self.agents = {str(name): Agent() for name in agents}
        self.headline = headline
        self._score = _function(reward)

    async def program(self, task: Task, endpoint: Endpoint) -> Any:
        """Start the process and return its result."""
        return await endpoint.run_process(self.command, task, folder=self.folder, environment=self.environment)

    def reward(self, task: Task, result: Any) -> Score | Awaitable[Score]:
        """The configured function of the result."""
        scored = self._score(task, result)
        if inspect.isawaitable(scored):
            return _awaited(scored)
        return scored if isinstance(scored, tuple) else (float(scored), {})


async def _awaited(scored: Awaitable[Any]) -> Score:
    found = await scored
    return found if isinstance(found, tuple) else (float(found), {})


def _function(name: str) -> Callable[..., Any]:
    module, _, function = str(name).rpartition(".")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"mas.workflow.reward={name!r} cannot be imported: {error}. Remedy: module.function, with the module's "
            "folder on PYTHONPATH"
        ) from error
    if not callable(found):
        raise ValueError(f"mas.workflow.reward={name!r} is no function")
    return found
