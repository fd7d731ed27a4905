"""Single tools with a definition, for native tool calls: those of verl, and of any catalogue (MCP, functions).

    mas:
      tools:
        calculator: {_target_: verl_ext.tools.native.verl_tool, path: tools.yaml, tool: calc}     # verl's tool_config
        add: {_target_: verl_ext.tools.native.catalogue_tool, source: {kind: mcp, command: [python, server.py]}}

`ctx.tool_schemas("calculator", "add")` gives their definitions to a model, and `ctx.tool("add", a=1, b=2)` calls one.
Arguments that do not fit the definition are refused, in words for the agent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_ext.tools.base import Tool, ToolRefused
from verl_ext.tools.catalogue.load import load_catalogue
from verl_ext.tools.catalogue.types import CallError, ToolSpec


class DescribedTool(Tool):
    """One tool whose arguments are checked against its description.

    Args:
        spec: with a back end.
    """

    def __init__(self, spec: ToolSpec):
        self.spec, self.name = spec, spec.name
        self.asked = self.refused = 0
        if spec.backend is None:
            raise ValueError(f"nothing runs the tool {spec.name!r} ({spec.source}): its source brings no back end")

    @property
    def definition(self) -> dict[str, Any]:
        """In OpenAI's form."""
        return {"type": "function", "function": self.spec.shown()}

    async def __call__(self, **arguments: Any) -> Any:
        """The tool's result.

        Raises:
            ToolRefused: the arguments do not fit, or the tool answers with an error.
            ToolError: its server fails.
        """
        self.asked += 1
        if problems := self.spec.problems(arguments):
            self.refused += 1
            raise ToolRefused("; ".join(problems))
        assert self.spec.backend is not None
        try:
            return await self.spec.backend(self.spec, arguments)
        except CallError as error:
            self.refused += 1
            raise ToolRefused(str(error)) from error

    def counts(self) -> dict[str, int]:
        """Calls, and those that were refused."""
        return {"calls": self.asked, "refused": self.refused}

    async def close(self) -> None:
        """Close the back end."""
        close = getattr(self.spec.backend, "close", None)
        if close is not None:
            await close()


def catalogue_tool(source: Mapping[str, Any], tool: str | None = None) -> DescribedTool:
    """One tool of a source of catalogues (docs/tools.md): {kind: mcp, url: …}, {kind: functions, path: …}.

    Args:
        source: its kind and settings.
        tool: its name there; None: the only one.

    Raises:
        ValueError: the source cannot be read, or there is no such tool.
    """
    catalogue = load_catalogue([dict(source)])
    return DescribedTool(catalogue[_chosen(list(catalogue), tool, f"the source {dict(source)}")])


def verl_tool(
    path: str | None = None,
    tool: str | None = None,
    *,
    class_name: str | None = None,
    config: Mapping[str, Any] | None = None,
    tool_schema: Mapping[str, Any] | None = None,
    create: Mapping[str, Any] | None = None,
) -> DescribedTool:
    """One of verl's tools (`verl.tools.base_tool.BaseTool`). Each call creates an instance, executes and releases it.

    So nothing of an instance lasts from call to call: what a fork replays must depend on the arguments alone. The
    reward of a step that a tool of verl may return is not used.

    Args:
        path: verl's `tool_config_path`, a YAML file with the list `tools`.
        tool: the tool's name there; None: the only one.
        class_name, config, tool_schema: one entry of that list, in place of a file.
        create: arguments of the tool's `create`.

    Raises:
        ValueError: neither a file nor a class is given, or both; or there is no such tool.
    """
    if (path is None) == (class_name is None):
        raise ValueError(f"verl_tool: give path or class_name, one of them; given {path!r} and {class_name!r}")
    entries = [{"class_name": class_name, "config": config, "tool_schema": tool_schema}]
    if path is not None:
        entries = _entries(Path(path))
    made = {one.name: (one, schema) for one, schema in map(_made, entries)}
    chosen, schema = made[_chosen(list(made), tool, path or class_name or "")]
    function = schema["function"]
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    backend = _VerlBackend(chosen, dict(create or {}))
    return DescribedTool(
        ToolSpec(chosen.name, function.get("description") or "", parameters, source="verl", backend=backend)
    )


class _VerlBackend:
    """Runs a tool of verl."""

    def __init__(self, tool: Any, create: dict[str, Any]):
        self.tool, self.create = tool, create

    async def __call__(self, spec: ToolSpec, arguments: dict[str, Any]) -> Any:
        instance, _ = await self.tool.create(**self.create)
        try:
            response = (await self.tool.execute(instance, arguments))[0]
        finally:
            await self.tool.release(instance)
        if getattr(response, "image", None) or getattr(response, "video", None):
            raise CallError(f"{spec.name} answered with images or videos, which agents here cannot see")
        return (response.text if hasattr(response, "text") else str(response)) or ""


def _entries(path: Path) -> list[dict[str, Any]]:
    import yaml

    try:
        listed = list(yaml.safe_load(path.read_text("utf-8"))["tools"])
        _ = [one["class_name"] for one in listed]
    except (OSError, KeyError, TypeError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(
            f"{path} is no tool_config of verl, with a list `tools` whose entries have a class_name: {error!r:.200}"
        ) from error
    return listed


def _made(entry: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """(a tool of verl, its definition as it was written)."""
    from verl.tools.schemas import OpenAIFunctionToolSchema
    from verl.tools.tool_registry import get_tool_class

    written = json.loads(json.dumps(entry["tool_schema"])) if entry.get("tool_schema") else None
    try:
        kind = get_tool_class(entry["class_name"])
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"verl_tool: class_name={entry['class_name']!r} cannot be imported: {error}") from error
    schema = OpenAIFunctionToolSchema.model_validate(written) if written else None
    tool = kind(config=dict(entry.get("config") or {}), tool_schema=schema)
    return tool, written or tool.get_openai_tool_schema().model_dump(exclude_none=True)


def _chosen(names: list[str], tool: str | None, where: str) -> str:
    if tool is None and len(names) == 1:
        return names[0]
    if tool not in names:
        raise ValueError(f"{where} has no tool {tool!r}; it has: {', '.join(names) or 'none'}. Remedy: tool=NAME")
    return tool
