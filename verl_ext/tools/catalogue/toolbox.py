"""The tool with which agents call any tool of a catalogue by name.

    await toolbox(name="GET /search/movie", arguments={"query": "Titanic"})   {"ok": True, "result": ...}
    await toolbox(name="GET /search/movie", arguments={})
        {"ok": False, "kind": "bad_arguments", "error": "GET /search/movie: 'query' is a required property"}

Every call of an agent gets an answer, as from a real API, also when the tool is unknown, the arguments do not fit the
schema, or the tool fails. A failure of the infrastructure (a server that is down, a time limit) is a ToolError instead,
which the caller retries and counts.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_ext.tools.base import Tool, ToolError
from verl_ext.tools.catalogue.load import TRUSTED, CatalogueSettings
from verl_ext.tools.catalogue.recorded import Recorded, content_of
from verl_ext.tools.catalogue.render import plain, render
from verl_ext.tools.catalogue.types import (
    BAD_ARGUMENTS,
    TOOL_ERROR,
    UNKNOWN_TOOL,
    Backend,
    CallError,
    Catalogue,
    ToolSpec,
    as_json,
)
from verl_ext.tools.settings import STRICT, AtLeastOne, options_from
from verl_ext.tools.threads import by_user, ordinary
from verl_ext.tools.time_limits import LimitReached, within

ANSWERED = "answered"
# Below the time limit of a tool call (mas.limits.tool_timeout, 60 s), whose message does not name the tool.
TIMEOUT_S = 30.0
MAX_CHARS = 100_000
MAX_ERROR_CHARS = 2_000


class Toolbox(Tool):
    """Calls tools of `catalogue`.

    Args:
        catalogue: the tools.
        backend: runs the tools that have no back end of their own (ToolSpec.backend); None if all have one.
        recorded: results that are served first, without a check against the tool's schema: some recorded calls of
            API-Bank contradict its documentation.
        timeout_s: seconds that a back end may take for one call, from when the call has its turn.
        max_chars: characters of a result as JSON; a longer result becomes a text that is cut there.

    A tool without a back end is answered from `recorded` alone; a call that is not recorded gets an error.

    Raises:
        ValueError: no back end runs some of the tools, or a setting is out of range.
    """

    name = "tool_call"

    def __init__(
        self,
        catalogue: Catalogue,
        backend: Backend | None = None,
        *,
        recorded: Recorded | None = None,
        timeout_s: float = TIMEOUT_S,
        max_chars: int = MAX_CHARS,
    ) -> None:
        _check_backends(catalogue, backend, recorded)
        if backend is not None and not callable(backend):
            raise ValueError(
                f"tool_call: backend must be a coroutine function (spec, arguments), given {backend!r:.200}"
            )
        self.catalogue, self.backend, self.recorded = catalogue, backend, recorded or Recorded()
        self.timeout_s, self.max_chars = timeout_s, max_chars
        self._answers: Counter[str] = Counter(dict.fromkeys((ANSWERED, UNKNOWN_TOOL, BAD_ARGUMENTS, TOOL_ERROR), 0))

    async def __call__(self, name: Any = None, arguments: Any = None) -> dict[str, Any]:  # type: ignore[override]
        """{"ok": True, "result": JSON}, or {"ok": False, "error": text, "kind": as in CallError}.

        Args:
            name, arguments: any values, as the agent wrote them. None as arguments is an empty object.

        Raises:
            ToolError: the back end itself failed, or took longer than `timeout_s`.
        """
        answer = await self._answer(name, arguments)
        self._answers[answer.get("kind", ANSWERED)] += 1
        return answer

    def counts(self) -> dict[str, int]:
        """Number of calls by kind of answer, and the counts of the back end (for a simulator, see its `Counters`)."""
        counters = getattr(self.backend, "counters", None)
        return dict(self._answers) | (counters.as_dict() if counters else {})

    async def _answer(self, name: Any, arguments: Any) -> dict[str, Any]:
        arguments = {} if arguments is None else arguments
        if not isinstance(name, str) or name not in self.catalogue:
            return _failure(UNKNOWN_TOOL, "; ".join(self.catalogue.problems(name, arguments)))
        spec = self.catalogue[name]
        try:
            if (name, arguments) in self.recorded:  # the real tool accepted them, even if its documentation does not
                result = self.recorded.get(name, arguments)
            else:
                problems = self.catalogue.problems(name, arguments)
                if problems:
                    return _failure(BAD_ARGUMENTS, "; ".join(problems))
                result = await self._run(spec, as_json(arguments))
        except ToolError:
            raise
        except CallError as error:
            return _failure(error.kind, str(error))
        except Exception as error:  # raised by an ordinary function that serves as a tool
            return _failure(TOOL_ERROR, error)
        return {"ok": True, "result": plain(result, self.max_chars)}

    async def close(self) -> None:
        """Close the back ends that have a `close`."""
        backends = [self.backend, *(spec.backend for spec in self.catalogue.values())]
        for backend in {id(backend): backend for backend in backends}.values():
            if hasattr(backend, "close"):
                await backend.close()

    async def _run(self, spec: ToolSpec, arguments: dict[str, Any]) -> Any:
        backend = spec.backend or self.backend
        if backend is None:
            raise CallError(f"{spec.name} has no result for these arguments")

        work = asyncio.ensure_future(within(_contained(backend, spec, arguments), self.timeout_s))
        try:
            await asyncio.wait([work])
        finally:
            work.cancel()
        if work.cancelled():
            raise CallError(f"{spec.name} was cancelled")
        try:
            return work.result()
        except LimitReached as error:
            raise ToolError(
                f"tool {spec.name!r} did not answer within {self.timeout_s:g} s. If it is slow, raise "
                "mas.tools.tool_call.timeout_s (and mas.limits.tool_timeout above it)"
            ) from error


async def _contained(backend: Backend, spec: ToolSpec, arguments: dict[str, Any]) -> Any:
    """Run the back end; exceptions that would end the event loop (sys.exit in a tool) become ordinary ones."""
    try:
        return await backend(spec, arguments)
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        if by_user(error):
            raise
        raise ordinary(error) from error


@dataclass(frozen=True, config=STRICT)
class ToolboxSettings(CatalogueSettings):
    """Settings of `tool_call`: those of Toolbox.

    recorded: files or folders of recorded results, see recorded/results.py.
    """

    recorded: str | Sequence[str] | None = None
    backend: Any = None
    timeout_s: Annotated[float, Field(gt=0)] = TIMEOUT_S
    max_chars: AtLeastOne = MAX_CHARS

    def load(self) -> tuple[Catalogue, Recorded | None]:
        """The tools, and their recorded results."""
        catalogue = self.catalogue()
        return catalogue, Recorded.load(self.recorded, catalogue.values()) if self.recorded else None


def tool_call(**settings: Any) -> Toolbox:
    """The tool_call of a recipe (`mas.tools.tool_call`); `settings` are those of ToolboxSettings.

    Raises:
        ValueError: a setting is unknown or wrong, or a file cannot be read.
    """
    given = _read(settings)
    catalogue, recorded = given.load()
    return Toolbox(catalogue, given.backend, recorded=recorded, timeout_s=given.timeout_s, max_chars=given.max_chars)


def _preflight(**settings: Any) -> None:
    """Check settings, files, every schema, servers of MCP sources and the back end, without running a tool."""
    given = _read(settings)
    catalogue, recorded = given.load()
    _check_backends(catalogue, given.backend, recorded)
    catalogue.check(TRUSTED)
    for backend in {id(spec.backend): spec.backend for spec in catalogue.values()}.values():
        if hasattr(backend, "preflight"):
            backend.preflight()
    of_backend(given.backend, "preflight")
    of_backend(given.backend, "check_tools", catalogue)


def _identity(**settings: Any) -> dict[str, Any]:
    given = _read(settings)
    identity: dict[str, Any] = {"catalogue": given.catalogue().version}
    identity |= {"recorded": content_of(given.recorded) if given.recorded else [], "max_chars": given.max_chars}
    return identity | {"backend": of_backend(given.backend, "identity")}


# A run calls `preflight` before it starts. A resumed evaluation compares `identity`: are the answers still the same?
tool_call.preflight = _preflight
tool_call.identity = _identity


def _read(settings: Mapping[str, Any]) -> ToolboxSettings:
    return options_from(ToolboxSettings, settings, "settings of tool_call")


def of_backend(backend: Any, question: str, *about: Any) -> Any:
    """Call `preflight`, `check_tools` or `identity` (`question`) of a back end's factory, given as a mapping with
    `_target_`. about: positional arguments; `check_tools` gets the catalogue.

    Raises:
        ValueError: the mapping has no `_target_`. Errors of the factory are passed on.
    """
    if backend is not None and not isinstance(backend, Mapping) and not callable(backend):
        raise ValueError(f"backend={backend!r:.200} must be a section with a _target_ that makes it, or null")
    if not isinstance(backend, Mapping):
        return None if backend is None else type(backend).__qualname__
    if "_target_" not in backend:
        raise ValueError(f"backend must have a _target_ that makes it, given {dict(backend)!r:.200}")
    from hydra.utils import get_object

    settings = {key: value for key, value in backend.items() if not str(key).startswith("_")}
    answer = getattr(get_object(backend["_target_"]), question, lambda *_, **said: said)
    return {"_target_": backend["_target_"], "settings": answer(*about, **settings)}


def _check_backends(catalogue: Catalogue, backend: Any, recorded: Recorded | None) -> None:
    without = [name for name, spec in catalogue.items() if not (backend or spec.backend)]
    known = recorded.tools() if recorded else set()
    if without and not known & set(without):
        raise ValueError(
            f"{len(without)} of {len(catalogue)} tools have nothing that runs them, e.g. {without[:3]}; recorded "
            f"results exist for {sorted(known)[:3] or 'none'}. Remedy: give tool_call a backend (e.g. a simulator) or "
            "recorded results of these tools, or restrict it with only"
        )


def _failure(kind: str, error: Any) -> dict[str, Any]:
    return {"ok": False, "error": render(error, MAX_ERROR_CHARS), "kind": kind}
