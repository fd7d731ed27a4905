"""The interface of a tool: one object with a name, called with keyword arguments.

To add a tool: subclass `Tool`, set `name`, take keyword arguments in `__call__`. Raise ToolError when the tool itself
fails, ToolRefused when it cannot serve the request and a retry would not help, ValueError for malformed arguments.

docs/tools.md has a table of all errors, from the back end to the reward: who raises them, who retries, what follows.
"""

from abc import ABC, abstractmethod
from typing import Any


class ToolError(Exception):
    """A failure of the tool itself (a server down, a time limit). The caller retries, then counts it; never reward 0.

    The message is for the user: what failed, where, and what to do about it.
    """


class ToolRefused(ToolError):
    """The tool cannot serve the request: a file outside the folder, a page that does not exist, a tool that is off.

    The caller does not retry. The message is for the agent that called the tool.
    """


class Tool(ABC):
    """One tool, shared by the concurrent trajectories of one event loop.

    name: how agents and the configuration refer to it (`mas.tools.<name>`).
    """

    name: str

    @abstractmethod
    async def __call__(self, **arguments: Any) -> Any:
        """Run the tool once. Must not block the event loop; a plain `def` may block, it runs in a thread.

        Raises ToolError when the tool fails (ToolRefused: a retry would not help), ValueError for malformed arguments.
        """

    def counts(self) -> dict[str, int]:
        """Counts since the start, by name; each becomes a metric `tools/<tool>/<name>`. By default none."""
        return {}

    async def close(self) -> None:
        """Release connections, threads and files. Called once, by the owner; by default nothing to do."""
        return None
