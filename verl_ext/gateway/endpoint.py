"""Endpoint: what a program is given to ask its agents, call tools and reward agents."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from verl_ext.gateway.running import environment_of
from verl_ext.gateway.session import GatewaySession
from verl_ext.mas.types import Task


class Endpoint:
    """The address of a trajectory for an asynchronous program.

    Attributes:
        base_url: of OpenAI's API, with /v1.
        url: of Anthropic's API, without /v1 (their client adds it).
        api_key: of this trajectory alone; ends with it.
        seed: a number for the program's own randomness, which a replay gives again.
    """

    def __init__(self, session: GatewaySession, url: str, key: str):
        self._session, self.url, self.api_key = session, url, key
        self._loop = asyncio.get_running_loop()
        self.base_url = f"{url}/v1"
        self.seed: int = session.ctx.rng.randrange(2**31)

    def __repr__(self) -> str:
        return f"Endpoint({self.base_url})"

    def _ask(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def tool(self, tool: str, /, **arguments: Any) -> Any:
        """Call a tool of `mas.tools`; await it. It is recorded: a replay gets the same result without calling it.

        Raises:
            ToolFailed: it failed after its bounded retries.
            ValueError: unknown tool, or arguments that it does not have.
        """
        return self._ask(self._session.tool(tool, arguments))

    def reward(self, agent: str, value: float) -> None:
        """Give an agent a reward of its own in this trajectory, beside the shared one; the last one counts.

        Raises:
            ValueError: unknown agent, or a value that is no finite number.
        """
        self._session.reward(agent, value)

    def run_process(
        self,
        command: Sequence[str],
        task: Task,
        folder: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Any:
        """Run a program in a process of its own and return its result; await it. See `processes`.

        Args:
            command: the program and its arguments.
            task: written to its standard input as JSON, without the ground truth.
            folder: where it starts; None: here.
            environment: variables besides those of this process and the addresses of this trajectory.

        Raises:
            RuntimeError: it cannot be started, prints too much, or ends with another status than 0.
        """
        found = {**environment_of(self.url, self.api_key, self.seed), **(environment or {})}
        return self._ask(self._session.run_process(list(command), task, found, folder))

    def note(self, name: str, value: Any) -> None:
        """Attach a value to the trajectory, for logs and evaluation; see `Context.note`."""
        self._session.ctx.note(name, value)


class BlockingEndpoint(Endpoint):
    """The same for a program that is a plain function: `tool` returns the result."""

    def _ask(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
