"""Single tools with a definition: verl's classes, and tools of catalogues."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tests.chatting import ADD, Scripted, calling
from tests.helpers import Script, forest_of, run, walk
from verl_ext.mas import Agent
from verl_ext.tools.base import ToolRefused
from verl_ext.tools.native import catalogue_tool, verl_tool
from verl_ext.trainer.build import build_tools

VERLS = """
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse

class Adder(BaseTool):
    open = 0

    async def create(self, instance_id=None, start=0, **kwargs):
        self.open, self.start = self.open + 1, start
        return "one", ToolResponse()

    async def execute(self, instance_id, parameters, **kwargs):
        if parameters["a"] < 0:
            raise ValueError("a is below 0")
        return ToolResponse(text=str(self.start + parameters["a"] + parameters["b"])), 0.5, {}

    async def release(self, instance_id, **kwargs):
        self.open -= 1
"""
CONFIG = """
tools:
  - class_name: verls_tools.Adder
    config: {type: native}
    tool_schema:
      type: function
      function:
        name: add
        description: Add two numbers.
        parameters:
          type: object
          properties: {a: {type: number, maximum: 9}, b: {type: number}}
          required: [a, b]
"""


@pytest.fixture
def adder(tmp_path, monkeypatch):
    (tmp_path / "verls_tools.py").write_text(VERLS)
    (tmp_path / "tools.yaml").write_text(CONFIG)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "verls_tools", raising=False)
    return build_tools(
        {
            "plus": {
                "_target_": "verl_ext.tools.native.verl_tool",
                "path": str(tmp_path / "tools.yaml"),
                "create": {"start": 100},
            }
        }
    )["plus"]


def test_a_tool_class_of_verl_is_a_tool_whose_instances_are_released(adder):
    assert adder.definition["function"]["parameters"]["properties"]["a"] == {"type": "number", "maximum": 9}
    assert asyncio.run(adder(a=1, b=2)) == "103"
    with pytest.raises(ToolRefused, match="10 is greater than the maximum of 9"):
        asyncio.run(adder(a=10, b=2))
    with pytest.raises(ValueError, match="below 0"):
        asyncio.run(adder(a=-1, b=2))
    assert adder.spec.backend.tool.open == 0 and adder.counts() == {"calls": 3, "refused": 1}


def test_an_agent_calls_it_natively(adder):
    async def program(task, ctx):
        tools = ctx.tool_schemas("plus")
        assert tools[0]["function"]["name"] == "plus"  # its name in mas.tools, not verl's
        reply = await ctx.chat("writer", [{"role": "user", "content": "1 + 2"}], tools=tools)
        return await ctx.run_tools(reply)

    llm = Scripted([calling(1, 2).replace("add", "plus")])
    trajectory = run(walk(forest_of(Script(program, {"writer": Agent()}), llm, tools={"plus": adder})))
    assert trajectory.result[0]["content"] == "103", trajectory.error


def test_a_function_and_a_server_are_tools(tmp_path):
    pytest.importorskip("mcp")
    (tmp_path / "server.py").write_text(
        "import logging\nfrom mcp.server import MCPServer\nlogging.disable()\n"
        "server = MCPServer('s')\n"
        "@server.tool()\n"
        "def add(a: int, b: int) -> str:\n    '''Add.'''\n    return str(a + b)\n"
        "@server.tool()\n"
        "def fail() -> str:\n    '''Fails.'''\n    raise ValueError('no')\n"
        "server.run('stdio')\n"
    )
    source = {"kind": "mcp", "command": [sys.executable, str(tmp_path / "server.py")]}
    with pytest.raises(ValueError, match="no tool None; it has: add, fail. Remedy: tool=NAME"):
        catalogue_tool(source)
    tool, failing = catalogue_tool(source, "add"), catalogue_tool(source, "fail")
    assert list(tool.definition["function"]["parameters"]["properties"]) == ["a", "b"]

    async def scenario():
        with pytest.raises(ToolRefused, match="'b' is a required property"):
            await tool(a=1)
        with pytest.raises(ToolRefused, match="Error executing tool fail"):
            await failing()
        result = await tool(a=1, b=2)
        await asyncio.gather(tool.close(), failing.close())
        return result

    assert "3" in str(asyncio.run(scenario()))


def test_a_function_of_mas_tools_is_described_by_its_docstring():
    async def add(a: float, b: float) -> float:
        """Add two numbers.

        Args:
            a: the first
            b: the second
        """
        return a + b

    async def bare(a):
        return a

    async def program(task, ctx):
        with pytest.raises(ValueError, match="'bare' of mas.tools has no definition"):
            ctx.tool_schemas("bare")
        with pytest.raises(ValueError, match="unknown tool 'ad'; tools configured under mas.tools: add, bare"):
            ctx.tool_schemas("ad")
        return ctx.tool_schemas("add")

    forest = forest_of(Script(program, {"writer": Agent()}), tools={"add": add, "bare": bare})
    trajectory = run(walk(forest))
    made, wanted = trajectory.result[0]["function"], ADD["function"]
    assert made["name"] == "add" and made["parameters"]["required"] == wanted["parameters"]["required"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "path or class_name, one of them"),
        ({"class_name": "nowhere.Tool"}, "'nowhere.Tool' cannot be imported"),
        ({"path": "nowhere.yaml"}, "nowhere.yaml is no tool_config of verl"),
    ],
)
def test_a_tool_of_verl_that_cannot_be_made_says_why(settings, message):
    with pytest.raises(ValueError, match=message):
        verl_tool(**settings)


@pytest.mark.parametrize("text", ["tools:", "tools: 3", "tools: [calc]", "tools: [{config: {}}]", "- calc", "\xe9: ["])
def test_a_file_that_lists_no_tools_is_no_tool_config(text, tmp_path):
    (tmp_path / "tools.yaml").write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match="tools.yaml is no tool_config of verl"):
        verl_tool(path=str(tmp_path / "tools.yaml"))
