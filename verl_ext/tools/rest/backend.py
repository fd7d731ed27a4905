"""The back end that calls operations of OpenAPI documents over HTTP, records the answers, and replays them.

    mas.tools.tool_call.backend: {_target_: verl_ext.tools.rest.rest, key_env: TMDB_KEY, per_second: 4}

The record is a file of the simulator's cache. Real and simulated answers have different keys, so they may share a file.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import closing
from pathlib import Path
from typing import Any

from verl_ext.tools.base import ToolRefused
from verl_ext.tools.catalogue.formats.openapi_requests import Request
from verl_ext.tools.catalogue.types import NOT_RECORDED, CallError, ToolSpec
from verl_ext.tools.rest import settings as reading_settings
from verl_ext.tools.rest.reading import Answer, answer_of
from verl_ext.tools.rest.sending import Sender
from verl_ext.tools.rest.settings import RestSettings, check_cache, read_settings, request_of
from verl_ext.tools.simulator.cache import ResultCache
from verl_ext.tools.simulator.keys import CallKey, call_key
from verl_ext.tools.time_limits import not_counted


class Counters:
    """Counts since the start: those of the sender, and calls that were answered from the record."""

    def __init__(self, sender: Sender) -> None:
        self._sender, self.recorded = sender, 0

    def as_dict(self) -> dict[str, int]:
        """By name, for metrics."""
        return {**self._sender.counts, "recorded": self.recorded}


class RestBackend:
    """A back end of tools (`verl_ext.tools.catalogue.Backend`). One event loop at a time.

    Raises:
        ValueError: the record cannot be opened.
    """

    def __init__(self, settings: RestSettings) -> None:
        check_cache(settings)
        self.settings = settings
        self._sender = Sender(settings)
        self._record = None if settings.mode == "live" else _open(settings)
        self.counters = Counters(self._sender)
        self._flights: dict[bytes, asyncio.Task[Answer]] = {}

    async def __call__(self, spec: ToolSpec, arguments: dict[str, Any]) -> Any:
        """The result of a call: JSON, or text.

        Raises:
            CallError: the server answers with an error, the answer is too long, an argument cannot be sent, the method
                is not allowed, or (kind not_recorded) a replay has no answer.
            ToolRefused: the settings do not allow the address, or the key is refused (`Refused`, with the status).
            ServerFailed: the server fails, with the status and the remedy.
        """
        try:
            request = request_of(spec)
        except ValueError as error:
            raise ToolRefused(str(error)) from error
        if request.method not in self.settings.methods:
            allowed = ", ".join(self.settings.methods)
            raise CallError(f"{spec.name} is not allowed here: only {allowed}")
        if self._record is None:
            return (await self._sender.send(spec, request, arguments)).result(spec.name)
        key = _key(spec, arguments)
        text = self._record.find(key)
        if text is not None:
            self.counters.recorded += 1
            return answer_of(text).result(spec.name)
        if self.settings.mode == "replay":
            raise CallError(f"nothing is recorded of this call of {spec.name}", NOT_RECORDED)
        answer = await self._ask_once(spec, request, arguments, key)
        return answer.result(spec.name)

    async def _ask_once(self, spec: ToolSpec, request: Request, arguments: dict[str, Any], key: CallKey) -> Answer:
        """Ask the server and record its answer, or wait for it if the same call is pending already."""
        loop = asyncio.get_running_loop()
        flight = self._flights.get(key.digest)
        if flight is None or flight.get_loop() is not loop:
            flight = self._flights[key.digest] = loop.create_task(self._ask(spec, request, arguments, key))
            flight.add_done_callback(lambda done: self._finish(key.digest, done))
        with not_counted():  # the flight has a limit of its own
            return await asyncio.shield(flight)

    async def _ask(self, spec: ToolSpec, request: Request, arguments: dict[str, Any], key: CallKey) -> Answer:
        answer = await self._sender.send(spec, request, arguments)
        if answer.lasting and self._record is not None:
            # The first answer stays: another process may have asked the same.
            return answer_of(await asyncio.wrap_future(self._record.store(key, answer.text(), "http")))
        return answer

    def _finish(self, digest: bytes, flight: asyncio.Task[Answer]) -> None:
        if self._flights.get(digest) is flight:
            del self._flights[digest]
        if not flight.cancelled():
            flight.exception()  # retrieved, because all callers may be gone

    async def close(self) -> None:
        """Cancel pending requests; close the connections and the record."""
        loop = asyncio.get_running_loop()
        flights = [flight for flight in self._flights.values() if flight.get_loop() is loop]
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)
        await self._sender.close()
        if self._record is not None:
            self._record.close()


def rest(**settings: Any) -> RestBackend:
    """A back end of `tool_call` that calls tools of kind openapi over HTTP; `settings` are those of RestSettings.

    Raises:
        ValueError: a setting is unknown or wrong, or the record cannot be used.
    """
    return RestBackend(read_settings(settings))


def preflight(**settings: Any) -> None:
    """Check the settings and the record before a start; no request is sent. Raises ValueError."""
    given = read_settings(settings)
    check_cache(given)
    if given.cache is not None and given.mode != "live" and Path(given.cache).exists():
        _open(given).close()


def check_tools(catalogue: Any, **settings: Any) -> None:
    """Check servers, hosts and the key of each tool, see `settings.check_tools`."""
    reading_settings.check_tools(read_settings(settings), catalogue)


def identity(**settings: Any) -> dict[str, Any]:
    """The settings on which answers depend; of a replay, its content."""
    given = read_settings(settings)
    common = {"mode": given.mode, "methods": sorted(given.methods)}
    if given.mode == "replay":
        with closing(_open(given)) as record:
            return common | {"cache": record.content()}
    return common | {"server": given.server, "hosts": sorted(given.hosts or ()), "max_mb": given.max_mb}


def recorded(first: int = -1, **settings: Any) -> dict[str, Any] | None:
    """How many answers the record of mode=record holds, and the hash of the `first` of them (-1: of all)."""
    given = read_settings(settings)
    if given.mode != "record" or given.cache is None or not Path(given.cache).exists():
        return None
    with closing(ResultCache(given.cache, writable=False, verify=False)) as record:
        return {"results": record.info()["results"], "content": record.content(first)}


def _open(given: RestSettings) -> ResultCache:
    return ResultCache(
        str(given.cache), writable=given.mode == "record", max_rows=given.max_rows, max_mb=given.max_cache_mb
    )


def _key(spec: ToolSpec, arguments: dict[str, Any]) -> CallKey:
    """As the simulator's, but of another digest: what a model has made up is no answer of the real server."""
    key = call_key(spec, arguments)
    return key._replace(digest=hashlib.sha256(f"http\n{key.version}\n{key.arguments}".encode()).digest())


# As for the simulator: a run calls `preflight` and `check_tools` before it starts, a resumed one compares `identity`,
# and a checkpoint holds what was `recorded`.
for question in (preflight, check_tools, identity, recorded):
    setattr(rest, question.__name__, question)
