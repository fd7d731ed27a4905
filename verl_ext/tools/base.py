"""The interface of a tool: one awaitable object with a name.

To add a tool: subclass `Tool`, set `name`, take keyword arguments in `__call__`, raise `ToolError` when the tool itself
fails (not when the caller passed nonsense: that is a ValueError), ToolRefused when another attempt would find the same.
"""

from abc import ABC, abstractmethod
from typing import Any


class ToolError(Exception):
    """A tool's own failure (a server down, a time limit): retried by the caller, then counted, never scored as 0.

    The message is for the user: what failed, where, and what to do about it.
    """


class ToolRefused(ToolError):
    """What was asked for cannot be had: a file outside the folder, a page that there is not, a tool that is off.

    Another attempt would find the same, so there is none. The message is for the agent that asked.
    """


class Tool(ABC):
    """One tool, shared by the concurrent trajectories of one event loop.

    name: how agents and the configuration refer to it (`mas.tools.<name>`).
    """

    name: str

    @abstractmethod
    async def __call__(self, **arguments: Any) -> Any:
        """Run the tool once. Must not block the event loop.

        Raises ToolError when the tool fails (ToolRefused: for good), ValueError when the arguments are malformed.
        """

    def counts(self) -> dict[str, int]:
        """What happened since the start, by name; each is a metric `tools/<tool>/<quantity>`. By default nothing."""
        return {}

    async def close(self) -> None:
        """Release connections, threads and files. Called once, when the owner is done; by default nothing to do."""
        return None
