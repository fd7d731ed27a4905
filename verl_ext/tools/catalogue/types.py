"""A tool as its documentation describes it, and a catalogue of such tools."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for


@dataclass(frozen=True)
class ToolSpec:
    """What an agent, a search index and a simulator know of one tool.

    Attributes:
        name: unique in its catalogue; what an agent calls the tool by.
        description: in words, for agents and for search.
        parameters: JSON Schema of the arguments (an object), as the source has it: nothing is simplified.
        returns: JSON Schema or example of a result, if the source tells; for simulators.
        source: where it comes from (openapi, toolbench, api_bank, toolhop, function, mcp, …).
        extra: what else the source says and a back end may need (method, path, category, …).
    """

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    returns: Any = None
    source: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """Hash of all that an answer may depend on: what is recorded of another version is not this tool's."""
        content = [self.name, self.description, self.parameters, self.returns, self.source, self.extra]
        return hashlib.sha256(canonical(content).encode()).hexdigest()[:16]

    def document(self) -> str:
        """The tool as an agent reads it: one line of JSON with name, description and parameters."""
        shown = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return json.dumps(shown, ensure_ascii=False)


class Catalogue(Mapping[str, ToolSpec]):
    """Tools by name, in the order given.

    Raises:
        ValueError: two tools share a name, or a tool's parameters are no JSON Schema.
    """

    def __init__(self, tools: Iterable[ToolSpec]):
        self._tools: dict[str, ToolSpec] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ValueError(
                    f"two tools are called {tool.name!r} (of {self._tools[tool.name].source or 'no source'} and "
                    f"{tool.source or 'no source'}). Remedy: give each a name of its own"
                )
            self._tools[tool.name] = tool
        self._validators: dict[str, Validator] = {}

    def __getitem__(self, name: str) -> ToolSpec:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    @property
    def version(self) -> str:
        """Hash of all tools, whatever their order."""
        return hashlib.sha256("\n".join(sorted(tool.version for tool in self.values())).encode()).hexdigest()[:16]

    def problems(self, name: str, arguments: Any) -> list[str]:
        """What is wrong with a call, in words for the agent that made it; empty if nothing is.

        Args:
            name: of the tool; an unknown one is a problem like others.
            arguments: whatever the agent wrote; must be an object that fits the tool's schema.
        """
        if name not in self._tools:
            return [f"there is no tool {name!r}"]
        if not isinstance(arguments, dict):
            return [f"the arguments of {name} must be an object, given {type(arguments).__name__}"]
        errors = sorted(
            self._validator(name).iter_errors(arguments), key=lambda error: (list(map(str, error.path)), error.message)
        )
        return [f"{'.'.join(map(str, error.path)) or name}: {error.message}" for error in errors]

    def _validator(self, name: str) -> Validator:
        if name not in self._validators:
            schema = dict(self._tools[name].parameters)
            kind = validator_for(schema)
            try:
                kind.check_schema(schema)
            except SchemaError as error:
                raise ValueError(f"the parameters of tool {name!r} are no JSON Schema: {error.message}") from error
            self._validators[name] = kind(schema)
        return self._validators[name]


def canonical(value: Any) -> str:
    """JSON with sorted keys and no blanks: equal values give equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
