"""Endpoint: what a program is given to ask its agents, call tools and reward agents."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from verl_ext.gateway.session import GatewaySession


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

    def note(self, name: str, value: Any) -> None:
        """Attach a value to the trajectory, for logs and evaluation; see `Context.note`."""
        self._session.ctx.note(name, value)


class BlockingEndpoint(Endpoint):
    """The same for a program that is a plain function: `tool` returns the result."""

    def _ask(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
