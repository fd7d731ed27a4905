"""Sends the request of a call: at a pace, to the allowed hosts, within limits of time and size, in several attempts."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from tenacity import RetryCallState, wait_random_exponential
from yarl import URL

from verl_ext.tools.base import ToolRefused
from verl_ext.tools.catalogue.formats.openapi_requests import BEARER, HEADER, QUERY, Request
from verl_ext.tools.catalogue.types import CallError, ToolSpec
from verl_ext.tools.http.client import Connections, Transient, retrying, transient_failures
from verl_ext.tools.rest.reading import Answer, ServerFailed, StatusFailure, check_status, read
from verl_ext.tools.rest.settings import READING, RestSettings
from verl_ext.tools.rest.writing import Written, quoted, written
from verl_ext.tools.time_limits import LimitReached, not_counted, within
from verl_ext.tools.web.addresses import Resolver
from verl_ext.tools.web.fetch import read_body

HEADERS = {"User-Agent": "verl_ext", "Accept": "application/json, */*;q=0.5", "Accept-Encoding": "gzip"}
MAX_PAUSE_S = 10.0
# A server that answers so has not carried the request out.
NOT_DONE = (429, 503)
HIDDEN = "[key]"


class Pace:
    """Turns at even intervals. per_second: None: at once."""

    def __init__(self, per_second: float | None) -> None:
        self._interval = 1 / per_second if per_second else 0.0
        self._next = 0.0

    async def turn(self) -> None:
        """Wait for the next turn; no time limit counts it."""
        now = asyncio.get_running_loop().time()
        start = max(now, self._next)
        self._next = start + self._interval
        if start > now:
            with not_counted():
                await asyncio.sleep(start - now)

    def pause(self, seconds: float) -> None:
        """No turn for so long: the server has asked for it."""
        self._next = max(self._next, asyncio.get_running_loop().time() + seconds)


class Sender(Connections):
    """Sends requests as the settings say. counts: requests, retries."""

    def __init__(self, settings: RestSettings) -> None:
        self.settings = settings
        self.counts: Counter[str] = Counter(requests=0, retries=0)
        self._bases: dict[str, str] = {}

    async def send(self, spec: ToolSpec, request: Request, arguments: dict[str, Any]) -> Answer:
        """The server's answer to a call.

        Raises:
            CallError: an argument cannot be sent, or the answer is too long.
            Refused, ToolRefused: see `reading`; or the address is not allowed.
            ServerFailed: all attempts failed, or not in time.
        """
        given = self.settings
        out, base = written(request, arguments), self._base(spec, request)
        self._open()
        slots = self._slots
        with not_counted():
            await slots.acquire()
        try:
            return await within(self._attempts(spec, request, base, out), given.timeout_s)
        except LimitReached as error:
            raise ServerFailed(
                f"{base} has not answered {spec.name} within {given.timeout_s:g} s", None,
                "a larger timeout_s, below that of tool_call and mas.limits.tool_timeout",
            ) from error  # fmt: skip
        finally:
            slots.release()

    def _base(self, spec: ToolSpec, request: Request) -> str:
        if spec.name not in self._bases:
            try:
                self._bases[spec.name] = self.settings.base(spec, request)
            except ValueError as error:
                raise ToolRefused(str(error)) from error
        return self._bases[spec.name]

    async def _attempts(self, spec: ToolSpec, request: Request, base: str, out: Written) -> Answer:
        where = f"{base} ({spec.name})"
        try:
            return await retrying(self.settings.attempts, self._wait)(self._send, request, base, out, where)
        except Transient as error:
            status = getattr(error, "status", None)
            remedy = (
                "is it running, and is `server` right?"
                if status is None
                else "see whether it is well, or more attempts"
            )
            remedy = "per_second below the server's limit, or more attempts" if status == 429 else remedy
            raise ServerFailed(f"{where} failed: {self._hide(str(error))}", status, remedy) from None

    async def _send(self, request: Request, base: str, out: Written, where: str) -> Answer:
        """One attempt. Raises Transient for a further one."""
        given = self.settings
        await self._pace.turn()
        self.counts["requests"] += 1
        url = URL(self._with_key(request, base, out), encoded=True)  # on the host of `base`: the rest is quoted
        try:
            with transient_failures(given.timeout_s):
                async with self._open().request(
                    request.method, url, headers=self._headers(request, out), data=_body(out), allow_redirects=False
                ) as response:
                    status, headers = response.status, response.headers
                    location = self._hide(headers.get("Location", ""))
                    after = headers.get("Retry-After", "")
                    check_status(status, after, location, given.key_statuses, where, self._key_in_words(request))
                    body, cut = await read_body(response, given.max_bytes)
                    kind = response.content_type.lower() if "Content-Type" in headers else ""
                    charset = response.charset
        except Transient as error:
            raise self._final(error, request) from None
        if cut:
            raise CallError(f"the answer is longer than {given.max_mb:g} MB; ask for less (fewer or shorter entries)")
        return read(status, kind, charset, self._hide_bytes(body), where)

    def _final(self, error: Transient, request: Request) -> Exception:
        """`error`, or one that ends the attempts: a request that changes something may have been carried out."""
        status = getattr(error, "status", None)
        if isinstance(error, StatusFailure) and error.after:
            self._pace.pause(min(error.after, MAX_PAUSE_S))
        if request.method in READING or status in NOT_DONE:
            return error
        return ServerFailed(
            f"{request.method} {request.path} failed: {self._hide(str(error))}", status,
            "see whether it was carried out; it is not sent twice",
        )  # fmt: skip

    def _wait(self, state: RetryCallState) -> float:
        self.counts["retries"] += 1
        return min(MAX_PAUSE_S, wait_random_exponential(multiplier=0.2, max=2.0)(state))

    def _with_key(self, request: Request, base: str, out: Written) -> str:
        key, place = self.settings.key, self.settings.place_of_key(request)
        query = out.query
        if key and place and place.kind == QUERY:  # in place of what the agent has given for it
            query = [pair for pair in query if pair[0] != quoted(place.name)] + [(quoted(place.name), quoted(key))]
        return base + Written(out.path, query).target

    def _headers(self, request: Request, out: Written) -> dict[str, str]:
        key, place = self.settings.key, self.settings.place_of_key(request)
        headers = dict(out.headers)
        if key and place and place.kind in (BEARER, HEADER):
            name = "Authorization" if place.kind == BEARER else place.name
            headers = {known: value for known, value in headers.items() if known.lower() != name.lower()}
            headers[name] = f"Bearer {key}" if place.kind == BEARER else key
        return headers

    def _key_in_words(self, request: Request) -> str:
        place, name = self.settings.place_of_key(request), self.settings.key_env
        if name is None:
            return "No key was sent: key_env is not set"
        if place is None or self.settings.key is None:
            return f"No key was sent: {name} is not set" if place else "No key was sent: the document names no place"
        return f"The key of {name} was sent as {place.kind}{f' {place.name}' if place.name else ''}"

    def _hide(self, text: str) -> str:
        key = self.settings.key
        return text.replace(key, HIDDEN).replace(quoted(key), HIDDEN) if key else text

    def _hide_bytes(self, body: bytes) -> bytes:
        key = self.settings.key
        return body.replace(key.encode(), HIDDEN.encode()) if key else body

    def _new_session(self) -> Any:
        import aiohttp

        self._slots, self._pace = asyncio.Semaphore(self.settings.concurrency), Pace(self.settings.per_second)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(resolver=Resolver(self.settings.allow_private), limit=0),
            timeout=aiohttp.ClientTimeout(total=None),  # `send` limits all attempts together
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=HEADERS,
            auto_decompress=False,
        )


def _body(out: Written) -> Any:
    if out.fields is None:
        return out.body
    import aiohttp

    form = aiohttp.FormData(default_to_multipart=True)
    for name, text in out.fields:
        form.add_field(name, text)
    return form
