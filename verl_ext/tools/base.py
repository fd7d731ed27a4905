"""The interface of a tool: one awaitable object with a name.

To add a tool: subclass `Tool`, set `name`, take keyword arguments in `__call__`. Raise ToolError when the tool itself
fails, ToolRefused when it cannot serve the request and a retry would not help, ValueError for malformed arguments.

Errors of tools, from the back end to the reward (docs/tools.md has the same table with examples):

    error         raised by                                        retried               then
    ToolError     a tool or its back end that fails                by the session *      ctx.tool raises ToolFailed
    Busy          a simulator with too many waiting calls          by its client, by *   as ToolError (it is one)
    ToolRefused   a tool that cannot serve the request             never                 ctx.tool raises ToolFailed
    Refused       a client whose server answers with status 4xx    never                 as ToolRefused (it is one)
    CallError     a back end of tool_call; `kind` says why         never                 tool_call returns the error
    CallFailed    ctx.call: the agent's call has no result         never                 the workflow may catch it
    ToolFailed    ctx.tool: the tool failed (a CallFailed)         never                 the workflow may catch it

    * mas.limits.tool_retries times; any other exception of a tool is treated as a ToolError

An error that tool_call returns is a result: the agent reads it, and the trajectory is scored. A CallFailed that the
workflow does not catch ends the trajectory as failed: it has no reward, is counted, and leaves its group.
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
        """Run the tool once. Must not block the event loop.

        Raises ToolError when the tool fails (ToolRefused: a retry would not help), ValueError for malformed arguments.
        """

    def counts(self) -> dict[str, int]:
        """Counts since the start, by name; each becomes a metric `tools/<tool>/<name>`. By default none."""
        return {}

    async def close(self) -> None:
        """Release connections, threads and files. Called once, by the owner; by default nothing to do."""
        return None
