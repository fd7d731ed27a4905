"""Environments as a tool: its state is a function of the calls of the trajectory.

    turn = await tool(task="game-7", past=[])                                              the first observation
    turn = await tool(task="game-7", past=[{"name": "open", …}], name="take", arguments={…})

Every call carries the calls before it, so there are no sessions. A retry repeats the same step instead of making a
second one, forked and replayed trajectories have their own state, and any process can answer. The tool keeps running
environments; if none has the state that a call needs, it plays the earlier calls in a new one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from verl_ext.mas import Task
from verl_ext.tools.base import Tool, ToolError
from verl_ext.tools.catalogue.render import render
from verl_ext.tools.catalogue.toolbox import BAD_ARGUMENTS, TOOL_ERROR, UNKNOWN_TOOL
from verl_ext.tools.catalogue.types import Catalogue, canonical

MAX_CHARS = 2_000  # of an error


@dataclass(frozen=True)
class Turn:
    """The answer of an environment.

    score: of the task so far, in [0, 1]. done: no further step is possible. effect: the step changed the state; an
    action that is impossible or changes nothing earns no credit.
    """

    observation: str
    score: float = 0.0
    done: bool = False
    effect: bool = True


class Environment(Protocol):
    """One run of an environment; the same task and steps give the same turns."""

    def reset(self, task: str) -> Turn:
        """Begin a task."""

    def step(self, name: str, arguments: Mapping[str, Any]) -> Turn:
        """Make a step. If it is impossible, the observation says so."""

    def close(self) -> None:
        """Release it."""


class EnvironmentTool(Tool):
    """The tool `environment` of EnvironmentAgent.

    Args:
        make: a new environment. It is used by one thread at a time, which these packages need.
        catalogue: the tools, for their schemas.
        sessions: environments that are kept where trajectories have arrived, at least 1.

    Raises:
        ValueError: `sessions` is out of range.
    """

    name = "environment"

    def __init__(self, make: Callable[[], Environment], catalogue: Catalogue, sessions: int = 64):
        if not isinstance(sessions, int) or isinstance(sessions, bool) or sessions < 1:
            raise ValueError(f"environment: sessions must be an integer >= 1, given {sessions!r}")
        self._make, self.catalogue, self.sessions = make, catalogue, sessions
        self._kept: OrderedDict[str, tuple[Environment, Turn]] = OrderedDict()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="environment")

    async def __call__(  # type: ignore[override]
        self, task: str = "", past: Sequence[Mapping[str, Any]] = (), name: Any = None, arguments: Any = None
    ) -> dict[str, Any]:
        """{"ok": True, "result": observation} and the rest of the Turn, or {"ok": False, "error", "kind"} as `Toolbox`.

        Args:
            task: the environment's name of the task.
            past: calls {"name", "arguments"} before this one that were ok.
            name, arguments: as the agent wrote them; no name: what is seen after `past`.

        Raises:
            ToolError: the environment itself failed.
        """
        past, arguments = list(past), {} if arguments is None else arguments
        if name is not None:
            problems = self.catalogue.problems(name, arguments)
            if problems:
                known = isinstance(name, str) and name in self.catalogue
                return _failure(BAD_ARGUMENTS if known else UNKNOWN_TOOL, "; ".join(problems))
        loop = asyncio.get_running_loop()
        try:
            turn = await loop.run_in_executor(self._thread, self._turn, task, past, name, arguments)
        except Exception as error:
            raise ToolError(f"the environment failed: {type(error).__name__}: {error}") from error
        if turn is None:
            return _failure(TOOL_ERROR, "the task is over")
        return {"ok": True, "result": turn.observation, "score": turn.score, "done": turn.done, "effect": turn.effect}

    async def close(self) -> None:
        """Release all environments."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._clear)
        self._thread.shutdown(wait=False)

    def _turn(self, task: str, past: list[Mapping[str, Any]], name: str | None, arguments: Any) -> Turn | None:
        """The turn after this call; None: there is none any more. Raises whatever the environment does."""
        key = _key(task, past)
        environment, turn = self._kept.pop(key) if key in self._kept else self._played(task, past)
        over = turn.done
        if name is not None and not over:
            turn = _step(environment, name, arguments)
            past = [*past, {"name": name, "arguments": arguments}]
            key = _key(task, past)
        others = [self._kept.pop(key)] if key in self._kept else []  # another trajectory has arrived here, too
        self._kept[key] = (environment, turn)
        while len(self._kept) > self.sessions:
            others.append(self._kept.popitem(last=False)[1])
        for other, _ in others:
            with suppress(Exception):  # it is not this trajectory's
                other.close()
        return None if name is not None and over else turn

    def _played(self, task: str, past: list[Mapping[str, Any]]) -> tuple[Environment, Turn]:
        environment = self._make()
        try:
            turn = environment.reset(task)
            for call in past:
                turn = environment.step(call["name"], call["arguments"])
        except BaseException:
            environment.close()
            raise
        return environment, turn

    def _clear(self) -> None:
        for environment, _ in self._kept.values():
            with suppress(Exception):
                environment.close()
        self._kept.clear()


def name_of(task: Task) -> str:
    """`extra_info.id` of a row: the environment's name of its task.

    Raises:
        ValueError: it has none.
    """
    if task.extra.get("id") is None:
        raise ValueError(
            f"row {task.index} has no extra_info.id, the environment's name of its task. Remedy: rows of "
            "data_prep/environments.py"
        )
    return str(task.extra["id"])


def _step(environment: Environment, name: str, arguments: Mapping[str, Any]) -> Turn:
    try:
        return environment.step(name, arguments)
    except BaseException:
        environment.close()  # its state is unknown
        raise


def _key(task: str, past: list[Mapping[str, Any]]) -> str:
    return canonical([task, [[call["name"], call["arguments"]] for call in past]])


def _failure(kind: str, error: str) -> dict[str, Any]:
    return {"ok": False, "error": render(error, MAX_CHARS), "kind": kind}
