"""Tools simulated by a model; a cache gives the same result for the same call.

    simulator = Simulator(mode="record", cache=ResultCache("data/simulator.db"), chat=ChatEndpoint(url))
    await simulator(catalogue["GET /search/movie"], {"query": "Titanic"})     {"page": 1, "results": [...]}

Modes: `record` answers from the cache, or asks the model and stores its answer before returning it. `replay` answers
from the cache alone. `live` always asks the model and neither reads nor writes the cache, so that trying out a model
changes no recording. In `record` and `replay`, recorded results of real calls are served before those of the cache.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from verl_ext.tools.base import ToolError
from verl_ext.tools.catalogue.types import BAD_ARGUMENTS, NOT_RECORDED, CallError, ToolSpec
from verl_ext.tools.chat import ChatEndpoint, EndpointFailed, TooLong
from verl_ext.tools.simulator.answers import NoResult, result_of, returned
from verl_ext.tools.simulator.cache import ResultCache
from verl_ext.tools.simulator.keys import CallKey, call_key
from verl_ext.tools.simulator.prompt import again, messages
from verl_ext.tools.time_limits import LimitReached, not_counted, within

MODES = ("record", "replay", "live")
# The source of a result that no model made.
RECORDED = "recorded"
# Below the toolbox's limit for a call (30 s), whose message would hide the reason.
TIMEOUT_S = 25.0
MAX_TOKENS = 1024


class Busy(ToolError):
    """Too many calls wait for the model. The server answers status 503, and its clients ask again after a second."""


@runtime_checkable
class RecordedResults(Protocol):
    """Results of real calls, such as `verl_ext.tools.catalogue.Recorded`."""

    def get(self, name: str, arguments: dict[str, Any]) -> Any:
        """The result; KeyError if the call is not recorded, CallError if the tool had answered with an error."""


@dataclass
class Counters:
    """Counts since the start; calls = hits + recorded + misses + calls with invalid arguments.

    Attributes:
        hits: calls answered from the cache.
        recorded: calls answered from recorded results of real calls.
        misses: other calls; the model was asked, except in `replay`.
        model_calls: requests to the model; fewer than misses if identical calls came at the same time.
        repairs: answers of the model that were almost JSON.
        failures: requests to the model or the cache that failed (ToolError), counted once for all waiting callers.
    """

    hits: int = 0
    recorded: int = 0
    misses: int = 0
    model_calls: int = 0
    repairs: int = 0
    failures: int = 0

    def as_dict(self) -> dict[str, int]:
        """By name, for metrics."""
        return asdict(self)


class Served(NamedTuple):
    """A result as one line of JSON, and where it came from: cache, recorded or model."""

    text: str
    source: str

    def result(self, name: str) -> Any:
        """The result of the tool `name`: of a real tool as recorded, of a simulated one as `answers.returned` says."""
        result = json.loads(self.text)
        return result if self.source == RECORDED else returned(result, name)


class Simulator:
    """A back end of tools (`verl_ext.tools.catalogue.Backend`). One event loop at a time.

    Args:
        mode: record, replay or live.
        cache: for record and replay; closed with this object.
        chat: the model, for record and live; closed with this object.
        recorded: results of real calls, served first in record and replay.
        max_tokens: longest answer of the model; after a longer one the model is asked once more for a shorter one.
        timeout_s: seconds for a call, all attempts together, from when the model is asked.
        max_waiting: calls that may wait for the model; further calls fail at once. None: no bound.

    Attributes:
        counters: see `Counters`.

    Raises:
        ValueError: the mode is unknown or lacks what it needs.
    """

    def __init__(
        self,
        *,
        mode: str = "record",
        cache: ResultCache | None = None,
        chat: ChatEndpoint | None = None,
        recorded: RecordedResults | None = None,
        max_tokens: int = MAX_TOKENS,
        timeout_s: float = TIMEOUT_S,
        max_waiting: int | None = None,
    ) -> None:
        check_mode(mode, cache is not None, chat is not None)
        self.mode, self.cache, self.chat, self.recorded = mode, cache, chat, recorded
        self.timeout_s, self.max_waiting = timeout_s, max_waiting
        self.counters = Counters()
        self._sampling = {"temperature": 0.0, "max_tokens": max_tokens}
        self._flights: dict[bytes, asyncio.Task[Served]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def waiting(self) -> int:
        """Calls that wait for the model."""
        return len(self._flights)

    async def __call__(self, spec: ToolSpec, arguments: dict[str, Any]) -> Any:
        """The result of a call, as JSON; see `serve`.

        Raises:
            CallError: also if the simulated tool fails (`answers.returned`).
        """
        served = await self.serve(spec, arguments)
        return served.result(spec.name)

    async def serve(self, spec: ToolSpec, arguments: dict[str, Any]) -> Served:
        """The result of a call.

        Raises:
            CallError: the arguments do not fit the tool's schema, are no JSON or too long (kind `bad_arguments`; the
                model is not asked); the call is not recorded, in mode `replay` (`not_recorded`); or the recorded answer
                is an error (`tool_error`).
            ToolError: the model did not answer in time, or not with JSON twice; too many calls wait for it (Busy); or
                the cache fails.
        """
        key = call_key(spec, arguments)
        served = None if self.mode == "live" else self._recorded(spec, arguments) or self._cached(key)
        if served is not None:
            return served
        problems = spec.problems(arguments)
        if problems:
            raise CallError("; ".join(problems), BAD_ARGUMENTS)
        if self.mode == "replay":
            self.counters.misses += 1
            raise CallError(f"nothing is recorded of this call of {spec.name}", NOT_RECORDED)
        return await self._ask_once(spec, key)

    async def close(self) -> None:
        """Cancel pending requests; close the connections and the cache."""
        flights = list(self._flights.values()) if self._loop is asyncio.get_running_loop() else []
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)
        self._flights.clear()
        if self.chat is not None:
            await self.chat.close()
        if self.cache is not None:
            self.cache.close()

    def _recorded(self, spec: ToolSpec, arguments: dict[str, Any]) -> Served | None:
        if self.recorded is None:
            return None
        try:
            result = self.recorded.get(spec.name, arguments)
        except KeyError:
            return None
        except CallError:
            self.counters.recorded += 1
            raise
        self.counters.recorded += 1
        try:
            return Served(json.dumps(result, allow_nan=False), RECORDED)
        except (TypeError, ValueError) as error:
            raise ToolError(f"the recorded result of a call of {spec.name} is no JSON: {error!s:.200}") from error

    def _cached(self, key: CallKey) -> Served | None:
        text = self.cache.find(key)
        if text is None:
            return None
        self.counters.hits += 1
        return Served(text, "cache")

    async def _ask_once(self, spec: ToolSpec, key: CallKey) -> Served:
        """Ask the model, or wait for the answer if the same call is pending already.

        The cancellation of one caller does not cancel the request: other callers and later attempts get its answer.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._flights = loop, {}
        flight = self._flights.get(key.digest)
        if flight is None:
            if self.max_waiting is not None and len(self._flights) >= self.max_waiting:
                raise Busy(f"{len(self._flights)} simulated calls wait for the model already; try again later.")
            flight = self._flights[key.digest] = loop.create_task(self._ask(spec, key))
            flight.add_done_callback(lambda done: self._finish(key.digest, done))
        self.counters.misses += 1
        with not_counted():  # the flight has a limit of its own
            return await asyncio.shield(flight)

    def _finish(self, digest: bytes, flight: asyncio.Task[Served]) -> None:
        if self._flights.get(digest) is flight:
            del self._flights[digest]
        if not flight.cancelled() and flight.exception() is not None:  # retrieved, because all callers may be gone
            self.counters.failures += 1

    async def _ask(self, spec: ToolSpec, key: CallKey) -> Served:
        try:
            text = await within(self._simulate(spec, key), self.timeout_s)
        except LimitReached as error:
            raise ToolError(
                f"{spec.name}: {self.chat.url} has not simulated it within {self.timeout_s:g} s. Remedy: a faster "
                "server, fewer requests at a time (concurrency), or a larger timeout_s, below that of tool_call and "
                "mas.limits.tool_timeout"
            ) from error
        except (EndpointFailed, TooLong, ValueError, NoResult) as error:
            raise ToolError(f"{self.chat.model} at {self.chat.url} cannot simulate {spec.name}: {error}") from error
        if self.mode == "record":
            text = await asyncio.wrap_future(self.cache.store(key, text, self.chat.model or ""))
        return Served(text, "model")

    async def _simulate(self, spec: ToolSpec, key: CallKey) -> str:
        """The model's answer. If it is no result, a second request tells the model why."""
        asked = chat = messages(spec, key.arguments)
        for last in (False, True):
            self.counters.model_calls += 1
            answer = await self.chat.complete(chat, self._sampling)
            try:
                # In a thread: a repair may take 0.2 s.
                result = await asyncio.to_thread(result_of, answer.text, answer.stop_reason)
            except NoResult as error:
                if last:
                    raise NoResult(f"no JSON in two answers, the second one {answer.text!r:.200}: {error}") from error
                chat = again(asked, answer.text, str(error))
            else:
                self.counters.repairs += result.repaired
                return result.text
        raise AssertionError("the second answer neither returned nor raised")


def check_mode(mode: str, cache: bool, chat: bool) -> None:
    """Check that the mode has the cache and the model that it needs.

    Raises:
        ValueError: it has not, or the mode is unknown.
    """
    if mode not in MODES:
        raise ValueError(f"the simulator's mode is {mode!r}; allowed: {', '.join(MODES)}.")
    if not cache and mode != "live":
        raise ValueError(f"mode={mode} needs a cache. Remedy: cache=PATH of a file, or mode=live.")
    if not chat and mode != "replay":
        raise ValueError(f"mode={mode} needs a model. Remedy: endpoint=http://HOST:8100/v1, or mode=replay.")
