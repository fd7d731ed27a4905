"""Tools of MCP servers (https://modelcontextprotocol.io), by the official package `mcp` >= 2, an extra of verl_ext.

A server is a command that is started and serves on its standard streams, or the url of a running server:

    {kind: mcp, command: [python, my_server.py]}        {kind: mcp, url: "http://127.0.0.1:8000/mcp"}
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_ext.tools.base import ToolError
from verl_ext.tools.catalogue.types import CallError, ToolSpec
from verl_ext.tools.threads import run_blocking

TIMEOUT_S = 30.0
# A server that lists more pages of tools is broken.
MAX_PAGES = 1000


@dataclass(frozen=True)
class Server:
    """Address of a server: either `command` (with its arguments) or `url`.

    env: environment variables of the command; MCP passes no others except PATH, HOME and a few more.
    timeout_s: seconds for the start and for each request.
    """

    command: Sequence[str] = ()
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        if isinstance(self.command, str) or not all(isinstance(word, str) for word in self.command):
            raise ValueError(f"mcp: command must be a list of words, given {self.command!r}")
        if bool(self.command) == bool(self.url):
            raise ValueError(f"mcp: give command or url, one of them; given {list(self.command)} and {self.url!r}")
        if self.url and not str(self.url).startswith(("http://", "https://")):
            raise ValueError(f"mcp: url must be http://HOST:PORT/PATH, given {self.url!r}")
        if not isinstance(self.timeout_s, int | float) or not self.timeout_s > 0:
            raise ValueError(f"mcp: timeout_s must be a number > 0, given {self.timeout_s!r}")

    def __str__(self) -> str:
        return self.url or " ".join(self.command)


def load(server: Server) -> list[ToolSpec]:
    """The tools that a server offers, with its own schemas. All share one connection, opened at the first call.

    Blocking; usable inside and outside a running event loop.

    Raises:
        ValueError: the server does not start or answer.
        ImportError: the package `mcp` is missing.
    """
    library()
    backend = McpBackend(server)

    async def listed() -> list[Any]:
        try:
            return await backend.list()
        finally:
            await backend.close()

    try:
        tools = run_blocking(listed())
    except (ToolError, CallError) as error:
        raise ValueError(str(error)) from error
    return [
        ToolSpec(
            tool.name,
            (tool.description or tool.title or "").strip(),
            tool.input_schema,
            tool.output_schema,
            "mcp",
            {"tool": tool.name, "server": str(server)},
            backend,
        )
        for tool in tools
    ]


class McpBackend:
    """Calls tools of one server, over one connection per event loop, opened at the first call.

    A task of its own holds the connection, because the library requires that the task that opened it closes it. When
    the server dies, the pending calls fail with a ToolError, and the next call opens a new connection.
    """

    def __init__(self, server: Server):
        self.server = server
        self._opened: asyncio.Future[Any] | None = None
        self._stop = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None  # of the newest connection
        self._keepers: set[asyncio.Task[None]] = set()

    async def __call__(self, spec: ToolSpec, arguments: dict[str, Any]) -> Any:
        """The tool's structured result, or its texts and other contents.

        Raises:
            ToolError: the server does not start, does not answer in time, or dies.
            CallError: the server's answer is an error.
        """
        result = await self._ask("call_tool", spec.extra.get("tool", spec.name), arguments)
        if result.is_error:
            raise CallError(str(_contents(result.content)))
        return _contents(result.content) if result.structured_content is None else result.structured_content

    async def list(self) -> list[Any]:
        """All tools of the server (mcp.types.Tool).

        Raises:
            ToolError: the server does not start or answer.
            CallError: the server's answer is an error.
        """
        tools: list[Any] = []
        cursor = None
        for _ in range(MAX_PAGES):
            page = await self._ask("list_tools", cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                return tools
        raise self._failed("its list of tools does not end")

    async def close(self) -> None:
        """End the connection; a server that was started for it ends, too."""
        loop = asyncio.get_running_loop()
        self._drop(self._opened)
        ending = [keeper for keeper in self._keepers if keeper.get_loop() is loop]
        if ending:
            await asyncio.wait(ending)

    async def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        mcp = library()
        opened = self._open()
        try:
            client = await asyncio.wait_for(asyncio.shield(opened), self.server.timeout_s)
        except asyncio.TimeoutError as error:  # noqa: UP041 (in Python 3.10 not yet the same as TimeoutError)
            self._drop(opened)
            raise self._failed(f"not ready within {self.server.timeout_s} s") from error
        try:
            return await getattr(client, method)(*arguments, **options)
        except mcp.MCPError as error:
            if error.code == mcp.types.REQUEST_TIMEOUT:
                raise self._failed(error.message) from error
            if error.code != mcp.types.CONNECTION_CLOSED:
                raise CallError(error.message) from error
            self._drop(opened)
            raise self._failed(error.message) from error
        except Exception as error:  # the transport's own errors, answers that are no MCP
            self._drop(opened)
            raise self._failed(f"{type(error).__name__}: {error}") from error

    def _open(self) -> asyncio.Future[Any]:
        """The future client of the running loop's connection, which is opened if there is none."""
        loop = asyncio.get_running_loop()
        if self._opened is None or self._opened.get_loop() is not loop:
            self._opened, self._stop = loop.create_future(), asyncio.Event()
            self._keeper = loop.create_task(self._keep(self._opened, self._stop))
            self._keepers.add(self._keeper)
            self._keeper.add_done_callback(self._keepers.discard)
        return self._opened

    async def _keep(self, opened: asyncio.Future[Any], stop: asyncio.Event) -> None:
        """Hold a connection until `stop` is set; `opened` receives the client, or the error."""
        mcp = library()
        command = list(self.server.command)
        target = self.server.url or mcp.StdioServerParameters(
            command=command[0], args=command[1:], env=dict(self.server.env)
        )
        try:
            async with mcp.Client(target, read_timeout_seconds=self.server.timeout_s) as client:
                opened.set_result(client)
                await stop.wait()
        except Exception as error:  # after opening, the pending calls have failed with it already
            if not opened.done():
                opened.set_exception(self._failed(_root(error)))
                opened.exception()  # retrieved, because perhaps nobody waits for it any more
            self._drop(opened)

    def _drop(self, opened: asyncio.Future[Any] | None) -> None:
        """End this connection, unless a newer one has replaced it; the next call opens another."""
        if opened is None or self._opened is not opened:
            return
        self._opened = None
        if opened.get_loop() is asyncio.get_running_loop():
            self._stop.set()
            if not opened.done() and self._keeper is not None:
                self._keeper.cancel()  # it hangs while opening

    def _failed(self, why: Any) -> ToolError:
        how = "is it running, and is the url right?" if self.server.url else "does the command work by itself?"
        return ToolError(f"the MCP server {self.server} failed ({why}); {how}")


def library() -> Any:
    """The package `mcp`.

    Raises:
        ImportError: it is missing, or older than version 2; says the remedy.
    """
    try:
        import mcp
    except ImportError:
        mcp = None
    if not hasattr(mcp, "Client"):
        raise ImportError("tools of MCP servers need mcp >= 2: `pip install 'verl_ext[mcp]'`.")
    return mcp


def _contents(contents: Sequence[Any]) -> Any:
    """The texts of a result joined; other contents (images, audio, resources) as objects without their data."""
    found = [
        content.text if content.type == "text" else content.model_dump(mode="json", exclude={"data"}, exclude_none=True)
        for content in contents
    ]
    return "\n".join(found) if all(isinstance(one, str) for one in found) else found


def _root(error: BaseException) -> BaseException:
    """The first error inside exception groups."""
    while isinstance(getattr(error, "exceptions", None), tuple):
        error = error.exceptions[0]
    return error
