"""Programs in a process of their own, in any language: ProgramWorkflow, which a recipe configures without any code.

    mas:
      workflow:
        _target_: verl_ext.gateway.ProgramWorkflow
        command: [python, my_agent.py]
        agents: [planner, solver]
        reward: my_rewards.score          # (task, result) -> a number, or (a number, {quantity: number})

The process has OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY and VERL_EXT_SEED in its
environment and the task as JSON on its standard input: question, data_source, index, extra. Its result is the last line
that it prints, a text unless it is a JSON object or list, or what it posts to /v1/result, which wins.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_ext.gateway.endpoint import Endpoint
from verl_ext.gateway.session import NOTHING, GatewaySession
from verl_ext.gateway.workflow import GatewayWorkflow
from verl_ext.mas.agent import Agent
from verl_ext.mas.types import Task
from verl_ext.mas.workflow import Score


class ProgramWorkflow(GatewayWorkflow):
    """A program that is started anew for each trajectory.

    Args:
        command: the program and its arguments. `python` is the interpreter of the training.
        agents: names of the agents, first to last. A request's `model` names one.
        reward: module.function, (task, result) -> a number, or a number and quantities to log.
        headline: the quantity that a person watches.
        folder: where the program starts; None: where the training was started.
        environment: variables that it has besides those of this process.

    Raises:
        ValueError: no command, no agents or one twice, a variable that is no text, no such program or function.
    """

    quiet = 0.1  # what a process asks at once comes later apart than what a thread does

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
        twice = sorted({str(name) for name in agents if list(agents).count(name) > 1})
        if twice:
            raise ValueError(f"mas.workflow.agents={list(agents)!r} names {', '.join(twice)} twice")
        for name, value in (environment or {}).items():
            if not isinstance(value, str):
                raise ValueError(f"mas.workflow.environment.{name}={value!r} must be a text. Remedy: put it in quotes")
        self.command, self.folder, self.environment = [str(part) for part in command], folder, dict(environment or {})
        if self.command[0] == "python" and "PATH" not in self.environment:
            self.command[0] = sys.executable  # that of the training, whether or not its environment is activated
        self.agents = {str(name): Agent() for name in agents}
        _check_command(self.command, folder, {**os.environ, **self.environment}.get("PATH"))
        self.headline = headline
        self._score = _function(reward)

    async def program(self, task: Task, endpoint: Endpoint) -> Any:
        """Start the process and return its result."""
        return await endpoint.run_process(self.command, task, folder=self.folder, environment=self.environment)

    def _result(self, work: asyncio.Future[Any], session: GatewaySession) -> Any:
        """See `GatewayWorkflow`. A program that has done nothing at all would be scored as one that answered badly."""
        result = super()._result(work, session)
        if result == "" and session.posted is NOTHING and not session.made:
            raise RuntimeError(
                f"the program {' '.join(self.command)} ended with status 0, but it printed nothing, posted no result "
                "to /v1/result and asked no agent"
            )
        return result

    def reward(self, task: Task, result: Any) -> Score | Awaitable[Score]:
        """The configured function of the result."""
        scored = self._score(task, result)
        if inspect.isawaitable(scored):
            return _awaited(scored)
        return scored if isinstance(scored, tuple) else (float(scored), {})


async def _awaited(scored: Awaitable[Any]) -> Score:
    found = await scored
    return found if isinstance(found, tuple) else (float(found), {})


def _check_command(command: Sequence[str], folder: str | None, path: str | None) -> None:
    """Refuse a command that cannot be started.

    Raises:
        ValueError: no such folder, no such program in it or on the PATH, or Python is to run a file that is not there.
    """
    start = Path(folder or ".")
    if not start.is_dir():
        raise ValueError(f"mas.workflow.folder={folder!r} is no folder (looked for from {os.getcwd()})")
    program = str(start / command[0]) if os.sep in command[0] else command[0]
    if shutil.which(program, path=path) is None:
        where = f"no program {program}" if os.sep in program else f"no program of this name on the PATH ({path})"
        raise ValueError(f"mas.workflow.command={list(command)!r}: {where}. Remedy: its whole path")
    script = command[1] if len(command) > 1 and Path(command[0]).name.startswith("python") else ""
    if script.endswith(".py") and not (start / script).is_file():
        raise ValueError(
            f"mas.workflow.command={list(command)!r}: no file {script} in {start.resolve()}. Remedy: its whole path, "
            "or mas.workflow.folder"
        )


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
