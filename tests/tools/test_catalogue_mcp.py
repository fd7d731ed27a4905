"""Tools of real MCP servers: a process spoken to through its streams, and one behind a url."""
# ruff: noqa: E402

import asyncio
import signal
import socket
import subprocess
import sys
import time

import pytest

mcp = pytest.importorskip("mcp", reason="MCP servers need `pip install 'verl_ext[mcp]'`")
if not hasattr(mcp, "Client"):
    pytest.skip("MCP servers need mcp >= 2: `pip install 'verl_ext[mcp]'`", allow_module_level=True)

from tests.tools.sandboxing import gone
from verl_ext.tools import ToolError
from verl_ext.tools.catalogue import Toolbox, load_catalogue
from verl_ext.tools.catalogue.formats.mcp import McpBackend, Server

SERVER = '''
import logging, os, sys, time
from typing import Annotated
from pydantic import Field
from mcp.server import MCPServer
from mcp.types import ImageContent, TextContent

logging.disable()
server = MCPServer("probe")

@server.tool()
def add(a: int, b: Annotated[int, Field(ge=0, description="not negative")] = 2) -> int:
    """Add two numbers."""
    return a + b

@server.tool(structured_output=False)
def picture() -> list:
    """A text and a picture."""
    return [TextContent(type="text", text="seen"), ImageContent(type="image", data="AAAA", mime_type="image/png")]

@server.tool(structured_output=False)
def words(count: int) -> str:
    """Says a word so often."""
    return "word " * count

@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("no such city")

@server.tool()
def variable() -> str:
    """A variable of the environment."""
    return os.environ.get("PROBE", "none") + str(os.getpid())

@server.tool()
def die() -> str:
    """Ends the server."""
    os._exit(3)

@server.tool()
async def slow() -> str:
    """Takes long."""
    import anyio
    await anyio.sleep(30)

if sys.argv[1] == "stdio":
    server.run("stdio")
else:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
'''
NAMES = ["add", "picture", "words", "fail", "variable", "die", "slow"]


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("mcp") / "server.py"
    path.write_text(SERVER)
    return str(path)


@pytest.fixture(scope="module")
def source(script):
    return {"kind": "mcp", "command": [sys.executable, script, "stdio"], "env": {"PROBE": "probe "}}


@pytest.fixture(scope="module")
def catalogue(source):
    return load_catalogue([source])


def using(catalogue, program):
    """The result of `program(call, toolbox)` with a toolbox of the catalogue, closed afterwards."""

    async def run():
        toolbox = Toolbox(catalogue)

        async def call(name, **arguments):
            return await toolbox(name=name, arguments=arguments)

        try:
            return await program(call, toolbox)
        finally:
            await toolbox.close()

    return asyncio.run(run())


def test_tools_are_listed_with_their_own_schemas(source):
    async def beside_a_loop():
        return load_catalogue([source | {"prefix": "probe."}])

    catalogue = asyncio.run(beside_a_loop())
    assert list(catalogue) == [f"probe.{name}" for name in NAMES]
    add = catalogue["probe.add"]
    assert add.description == "Add two numbers." and add.source == "mcp" and add.extra["tool"] == "add"
    assert add.parameters["properties"]["b"] == {
        "default": 2,
        "description": "not negative",
        "minimum": 0,
        "title": "B",
        "type": "integer",
    }
    assert add.returns["properties"]["result"]["type"] == "integer"
    catalogue.check()


def test_calls_errors_and_contents(catalogue):
    async def program(call, toolbox):
        return await asyncio.gather(
            call("add", a=1),
            call("add", a=1, b=-1),
            call("picture"),
            call("words", count=2),
            call("fail"),
            call("variable"),
        )

    added, wrong, picture, words, failed, variable = using(catalogue, program)
    assert added == {"ok": True, "result": {"result": 3}}
    assert wrong == {"ok": False, "error": "b: -1 is less than the minimum of 0", "kind": "bad_arguments"}
    assert picture == {"ok": True, "result": ["seen", {"type": "image", "mime_type": "image/png"}]}
    assert words == {"ok": True, "result": "word word "}
    assert failed["kind"] == "tool_error" and "fail" in failed["error"]
    assert variable["result"]["result"].startswith("probe ")


def test_one_connection_serves_all_calls_and_a_dead_server_is_started_again_until_the_toolbox_ends(catalogue):
    async def program(call, toolbox):
        first = await asyncio.gather(*(call("variable") for _ in range(5)))
        with pytest.raises(
            ToolError, match=r"the MCP server .*server.py stdio failed \(.*does the command work by itself\?"
        ):
            await call("die")
        return first, await call("variable"), await call("variable")

    first, again, last = using(catalogue, program)
    assert len({answer["result"]["result"] for answer in first}) == 1
    assert again["ok"] and again != first[0] and again == last
    assert gone(int(last["result"]["result"].split()[1]))


def test_slow_calls_end_at_the_servers_limit_and_leave_the_others_alone(source):
    async def program(call, toolbox):
        await call("add", a=1)
        slow = asyncio.ensure_future(call("slow"))
        quick = [await call("add", a=i) for i in range(3)]
        with pytest.raises(ToolError, match="server.py stdio failed"):
            await slow
        return [answer["result"]["result"] for answer in quick], await call("add", a=40)

    assert using(load_catalogue([source | {"timeout_s": 6.0}]), program) == (
        [2, 3, 4],
        {"ok": True, "result": {"result": 42}},
    )


def test_a_server_behind_a_url(script):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, script, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(3000):
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)

        async def program(call, toolbox):
            answer = await call("add", a=1)
            process.send_signal(signal.SIGKILL)
            process.wait()
            with pytest.raises(ToolError, match=f"http://127.0.0.1:{port}/mcp failed.*is it running"):
                await call("add", a=1)
            with pytest.raises(ToolError, match="is it running"):
                await call("add", a=1)
            return answer

        source = {"kind": "mcp", "url": f"http://127.0.0.1:{port}/mcp", "timeout_s": 60}
        assert using(load_catalogue([source]), program)["result"] == {"result": 3}
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "command, reason",
    [
        (["a-command-that-there-is-not"], "No such file"),
        ([sys.executable, "-c", "print('no MCP')"], "Connection closed"),
    ],
)
def test_servers_that_do_not_start_are_named(command, reason):
    with pytest.raises(ValueError, match=f"the MCP server .*{command[-1][:5]}.*{reason}.*does the command work"):
        load_catalogue([{"kind": "mcp", "command": command}])


def test_a_server_that_says_nothing_is_given_up():
    start = time.monotonic()
    with pytest.raises(ValueError, match="failed.*does the command work"):
        load_catalogue([{"kind": "mcp", "command": ["sleep", "60"], "timeout_s": 1}])
    assert time.monotonic() - start < 50


def test_a_missing_package_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ImportError, match=r"mcp >= 2: `pip install 'verl_ext\[mcp\]'`"):
        load_catalogue([{"kind": "mcp", "command": ["true"]}])
    with pytest.raises(ImportError, match="mcp >= 2"):
        asyncio.run(McpBackend(Server(command=["true"])).list())
