"""A tool as its documentation describes it, a catalogue of such tools, and the back ends that run them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from jsonschema.protocols import Validator

from verl_ext.tools.catalogue.patterns import PatternTimeout, errors_of
from verl_ext.tools.catalogue.schemas import validator

if TYPE_CHECKING:
    from verl_ext.tools.catalogue.formats.openapi_requests import Request

# Problems of one call that an agent is shown, and the length of each: a message quotes the arguments, however long.
MAX_PROBLEMS, MAX_PROBLEM_CHARS = 10, 300
# Kinds of errors that answer a call.
UNKNOWN_TOOL, BAD_ARGUMENTS, TOOL_ERROR, NOT_RECORDED = "unknown_tool", "bad_arguments", "tool_error", "not_recorded"


class CallError(Exception):
    """The answer to a call is an error. The agent that called gets the message; nobody retries.

    kind: `tool_error` (the tool answered so), `bad_arguments` (the tool does not take these), `not_recorded` (a replay
        has no result for this call) or `unknown_tool`.
    """

    def __init__(self, message: str, kind: str = TOOL_ERROR) -> None:
        super().__init__(message)
        self.kind = kind


@runtime_checkable
class Backend(Protocol):
    """Runs tools: a function, a server, a simulator.

    It is called with arguments that fit the tool's schema, and returns whatever the tool returns. It raises CallError
    when the tool answers with an error (any other exception counts as one, under its name), and ToolError when the back
    end itself fails, so that the caller retries. It may have a coroutine `close`.
    """

    async def __call__(self, spec: ToolSpec, arguments: dict[str, Any]) -> Any:
        """The tool's result."""


@dataclass(frozen=True)
class ToolSpec:
    """Everything that an agent, a search index and a simulator know about one tool.

    Attributes:
        name: unique in its catalogue; agents call the tool by it.
        description: text for agents and for search.
        parameters: JSON Schema of the arguments (an object), as in the source, not simplified.
        returns: JSON Schema or example of a result, if the source has one; for simulators.
        source: the kind of source (openapi, toolbench, api_bank, toolhop, functions, mcp, …).
        extra: further facts of the source that a back end may need (method, path, category, …).
        backend: runs the tool, if the source brings one (functions, mcp). Part of neither documentation nor `version`.
        request: its HTTP request, if the source describes one (openapi). Part of neither, too.
    """

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    returns: Any = None
    source: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    backend: Backend | None = field(default=None, compare=False, repr=False)
    request: Request | None = field(default=None, compare=False, repr=False)

    @cached_property
    def version(self) -> str:
        """Hash of everything that an answer may depend on. Results recorded for another version are not served."""
        content = [self.name, self.description, self.parameters, self.returns, self.source, self.extra]
        return hashlib.sha256(canonical(content).encode()).hexdigest()[:16]

    @cached_property
    def validator(self) -> Validator:
        """Of `parameters`. Raises ValueError if they are no JSON Schema."""
        return validator(self.parameters, f"the parameters of tool {self.name!r}")

    def problems(self, arguments: Any) -> list[str]:
        """The problems of a call, in words for the agent that made it; empty if the call is valid.

        Args:
            arguments: any value that the agent wrote; valid is an object that fits the tool's schema.

        Raises:
            ValueError: the tool's parameters are no JSON Schema. Bad `arguments` never raise.
        """
        check, name = self.validator, self.name
        try:
            value = as_json(arguments)
        except ValueError as error:
            return [f"the arguments of {name} are not JSON: {error}"]
        if not isinstance(value, dict):
            return [f"the arguments of {name} must be an object, given {type(arguments).__name__}"]
        try:
            errors = sorted(errors_of(check, value), key=lambda error: (list(map(str, error.path)), error.message))
        except PatternTimeout as error:
            return [_cut(f"{name}: {error}")]
        except RecursionError:
            return [f"the arguments of {name} are nested too deeply"]
        found = [f"{'.'.join(map(str, error.path)) or name}: {error.message}" for error in errors[:MAX_PROBLEMS]]
        more = [f"and {len(errors) - MAX_PROBLEMS} more problems"] if len(errors) > MAX_PROBLEMS else []
        return [_cut(problem) for problem in found] + more

    def shown(self) -> dict[str, Any]:
        """The part that agents read: name, description and parameters."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


class Catalogue(Mapping[str, ToolSpec]):
    """Tools by name, in the order given.

    Raises:
        ValueError: two tools share a name, or a name is no text.
    """

    def __init__(self, tools: Iterable[ToolSpec]):
        self._tools: dict[str, ToolSpec] = {}
        for tool in tools:
            if not isinstance(tool.name, str) or not tool.name.strip():
                raise ValueError(f"a tool of {tool.source or 'no source'} has the name {tool.name!r}; give it a text")
            if tool.name in self._tools:
                raise ValueError(
                    f"two tools are called {tool.name!r} (of {self._tools[tool.name].source or 'no source'} and "
                    f"{tool.source or 'no source'}). Remedy: give each a name of its own, e.g. by `prefix` of a source"
                )
            self._tools[tool.name] = tool

    def __getitem__(self, name: str) -> ToolSpec:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    @property
    def version(self) -> str:
        """Hash of all tools; their order does not matter."""
        return hashlib.sha256("\n".join(sorted(tool.version for tool in self.values())).encode()).hexdigest()[:16]

    def only(self, names: Iterable[str]) -> Catalogue:
        """The catalogue of these tools alone, in the order of `names`.

        Raises:
            ValueError: one of them is not here.
        """
        wanted = list(dict.fromkeys(names))
        unknown = [name for name in wanted if not self._has(name)]
        if unknown:
            raise ValueError(
                f"{len(unknown)} of {len(wanted)} names belong to no tool: {', '.join(map(repr, unknown[:10]))}; "
                f"the catalogue has {len(self)} tools, among them {', '.join(map(repr, list(self)[:5]))}"
            )
        return Catalogue(self[name] for name in wanted)

    def check(self, trusted: Collection[str] = ()) -> None:
        """Check the parameters of all tools, except those of `trusted` sources. Takes milliseconds per tool.

        Raises:
            ValueError: a tool's parameters are no JSON Schema. Without this check its first call would raise that.
        """
        for tool in self.values():
            if tool.source not in trusted:
                _ = tool.validator

    def problems(self, name: Any, arguments: Any) -> list[str]:
        """The problems of a call, see `ToolSpec.problems`; an unknown name, of any type, is one, too."""
        if not self._has(name):
            given = repr(name[:100]) if isinstance(name, str) else f"of type {type(name).__name__}"
            return [f"there is no tool {given}"]
        return self._tools[name].problems(arguments)

    def _has(self, name: Any) -> bool:
        return isinstance(name, str) and name in self._tools


def canonical(value: Any) -> str:
    """JSON in ASCII, with sorted keys and no blanks: values that are equal as JSON give equal texts.

    1.0 equals 1, a tuple equals a list; 1 equals neither "1" nor true.
    """
    written = json.dumps(value, default=lambda other: dict(other) if isinstance(other, Mapping) else str(other))
    return json.dumps(json.loads(written, parse_float=_number), sort_keys=True, separators=(",", ":"))


def as_json(value: Any) -> Any:
    """A copy of `value`, written as JSON and read again: dict, list, str, int, float, bool and None.

    Raises:
        ValueError: JSON cannot represent it (NaN, an object, a cycle, nested too deeply); the message says why.
    """
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except Exception as error:  # whatever an odd object raises
        raise ValueError(_cut(f"{error}")) from None


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


def _cut(text: str) -> str:
    return text if len(text) <= MAX_PROBLEM_CHARS else f"{text[:MAX_PROBLEM_CHARS]}…"
