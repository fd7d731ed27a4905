"""Tools that the rollout workers of a node share: `mas.tools.<name>.once_per_node=true`.

Such a tool is built in one process a node, a Ray actor with a name (`ToolHost`). Every rollout worker there has a
`NodeTool` in its place, which sends the calls on. So the node holds an index or an encoder once, and builds it once.

The host belongs to the worker that was the first to ask for it, and ends with it; the next call of another worker
starts a new one. Its counts since the last step are lost then.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from verl_ext.mas.chat_context import definition_of
from verl_ext.tools.base import Tool, ToolError
from verl_ext.tools.threads import Threads, is_async
from verl_ext.tools.time_limits import not_counted, seconds_left, within
from verl_ext.tracebacks import kept_traceback
from verl_ext.trainer import nodes
from verl_ext.trainer.build import build_tools
from verl_ext.trainer.sections import ONCE_PER_NODE

# Calls under way at a time in a host: as many as the workers of a node have. Ray's own limit is 1,000.
CALLS = 100_000


def tools_of_node(sections: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """As `build_tools`, for one of several workers of a node.

    Raises:
        ToolError: a tool of the node cannot be built.
    """
    shared = {name: NodeTool(name, section) for name, section in sections.items() if section.get(ONCE_PER_NODE)}
    own = build_tools({name: section for name, section in sections.items() if name not in shared})
    return {name: shared[name] if name in shared else own[name] for name in sections}


@ray.remote
class ToolHost:
    """The process of a tool: all methods run on its event loop."""

    def __init__(self, name: str, section: dict[str, Any]):
        with ThreadPoolExecutor(1) as thread:  # as in a worker: without an event loop, which some factories start
            self._tool = thread.submit(build_tools, {name: section}).result()[name]
        self._name, self._taken, self._threads = name, Counter[str](), Threads()

    async def signature(self) -> inspect.Signature:
        """The tool's arguments, and which may be left out. Annotations and defaults may be nothing that can be sent."""
        given, empty = inspect.signature(self._tool).parameters.values(), inspect.Parameter.empty
        defaults = [empty if one.default is empty else None for one in given]
        sent = [one.replace(annotation=empty, default=default) for one, default in zip(given, defaults, strict=True)]
        return inspect.Signature(sent)

    async def definition(self) -> dict[str, Any]:
        """See `definition_of`."""
        return definition_of(self._name, self._tool)

    async def call(self, arguments: dict[str, Any], seconds: float | None) -> Any:
        """The tool's result within its time limit, as `verl_ext.mas.tool_calls` would call it in a worker."""
        with kept_traceback():
            if is_async(self._tool):
                return await within(self._tool(**arguments), seconds)
            return await self._threads.run(partial(self._tool, **arguments), seconds)

    async def take_counts(self) -> dict[str, int]:
        """The increase of the tool's counts since any worker asked."""
        now = self._tool.counts() if hasattr(self._tool, "counts") else {}
        taken, self._taken = {key: count - self._taken[key] for key, count in now.items()}, Counter(now)
        return taken


class NodeTool(Tool):
    """A tool that this node's host has. It raises what the tool raises; ToolError if the host has died.

    Args:
        name: of the tool in `mas.tools`.
        section: its section there.
    """

    def __init__(self, name: str, section: dict[str, Any]):
        self.name, self._section = name, section
        self._host: Any = None
        self._counts: Counter[str] = Counter()
        self.__signature__ = self._ask("signature")  # for the check of a call's arguments

    async def __call__(self, **arguments: Any) -> Any:
        """The tool's result. Its time limit holds in the host, where it counts from when the call is served."""
        seconds = seconds_left()
        with not_counted(), self._living() as host:
            call = host.call.remote(arguments, seconds)
            try:
                return await call
            except asyncio.CancelledError:
                ray.cancel(call)
                raise

    @cached_property
    def definition(self) -> dict[str, Any]:
        """See `definition_of`."""
        return self._ask("definition")

    def counts(self) -> dict[str, int]:
        """What this worker was the first to learn: the sum over the workers of a node is what the tool has counted."""
        try:
            self._counts.update(self._ask("take_counts"))
        except ToolError:  # the host has died
            pass
        return dict(self._counts)

    def _ask(self, method: str) -> Any:
        with self._living() as host:
            return ray.get(getattr(host, method).remote())

    @contextmanager
    def _living(self) -> Iterator[Any]:
        """The host, which is started if no worker of the node has done that. Errors of the tool are raised as they are.

        Raises:
            ToolError: the host has died.
        """
        host = self._host = self._host or self._find()
        try:
            yield host
        except RayTaskError as error:
            raise error.cause from None
        except RayActorError as error:
            if self._host is host:  # else another call has found out before
                self._host = None
                ray.kill(host)  # so that its name is free, also if it lives behind a broken connection
            reason = str(error) if error.actor_init_failed else nodes.first_line(error)
            raise ToolError(
                f"the process of the tool {self.name!r}, which the rollout workers of this node share "
                f"(mas.tools.{self.name}.{ONCE_PER_NODE}), has died: {reason} The next call starts a new one."
            ) from None

    def _find(self) -> Any:
        ids = ray.get_runtime_context()
        name = f"tool {self.name} of node {ids.get_node_id()}, job {ids.get_job_id()}"
        options = {"name": name, "get_if_exists": True, "max_concurrency": CALLS, **nodes.this_node()}
        host: Any = ToolHost
        return host.options(**options).remote(self.name, self._section)
