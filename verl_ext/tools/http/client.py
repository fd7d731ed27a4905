"""What the HTTP clients of this package share, and the base class of those that ask its own servers for JSON."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from verl_ext.tools.base import ToolError, ToolRefused
from verl_ext.tools.threads import run_blocking
from verl_ext.tools.time_limits import not_counted

RETRY_STATUS = frozenset({429, 500, 502, 503, 504})
# Environment variable of the servers and of their clients: requests without this token are refused. Not set: no token.
TOKEN = "VERL_EXT_TOKEN"
# Requests of a client of our servers at a time, and the longest pause that it makes before it asks a busy server again.
CONCURRENT, MAX_PAUSE_S = 64, 10.0


class Refused(ToolRefused):
    """The server refused a request (status 4xx); another attempt would be refused, too.

    status: HTTP status. text: the server's explanation.
    """

    def __init__(self, message: str, status: int, text: str) -> None:
        super().__init__(message, status, text)  # all of them: Ray pickles errors, and makes them again of `args`
        self.message, self.status, self.text = message, status, text

    def __str__(self) -> str:
        return self.message


class Transient(Exception):
    """A failure after which another attempt may succeed. after: seconds that the server asks to wait."""

    def __init__(self, message: str, after: float = 0.0) -> None:
        super().__init__(message)
        self.after = after


class ServerBusy(Exception):
    """The server takes no more requests now. after: seconds that it asks to wait."""

    def __init__(self, after: float) -> None:
        super().__init__(f"busy for {after:g} s")
        self.after = after


@contextmanager
def transient_failures(timeout_s: float) -> Iterator[None]:
    """Turn failures of a connection, and of the time limit that aiohttp keeps, into Transient."""
    import aiohttp

    try:
        yield
    except asyncio.TimeoutError as error:  # noqa: UP041 (in Python 3.10 not yet the same as TimeoutError)
        raise Transient(f"no answer within {timeout_s:g} s") from error
    except (aiohttp.ClientError, OSError) as error:
        raise Transient(f"{type(error).__name__}: {error}") from error


def retrying(attempts: int, wait: Callable[[RetryCallState], float]) -> AsyncRetrying:
    """Calls a coroutine function up to `attempts` times while it raises Transient; then raises the last one."""
    retry = retry_if_exception_type(Transient)
    return AsyncRetrying(stop=stop_after_attempt(attempts), wait=wait, retry=retry, reraise=True)


class Connections:
    """Base class of clients with one aiohttp session, which opens at the first request in an event loop.

    One event loop at a time; a closed loop may be followed by a new one, which gets a new session.
    """

    _session: Any = None
    _loop: asyncio.AbstractEventLoop | None = None

    def _new_session(self) -> Any:
        raise NotImplementedError

    def _open(self) -> Any:
        """The session of the running loop."""
        loop = asyncio.get_running_loop()
        if self._session is None or self._session.closed or self._loop is not loop:
            self._session, self._loop = self._new_session(), loop
        return self._session

    async def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        if self._session is not None and self._loop is asyncio.get_running_loop():
            await self._session.close()
        self._session = self._loop = None


class JsonClient(Connections):
    """Base class of the clients of this package's servers. A subclass adds its requests, and the class attributes.

    url: http://HOST:PORT of the server. timeout_s: seconds for one attempt. attempts: tries per request, with
    exponential waits of at most `max_wait_s` seconds between them; refused requests (4xx) are not tried again.
    At most CONCURRENT requests are sent at a time. The others wait, and so does a request while the server is busy
    (429 or 503 with Retry-After): that is no failed attempt, and no time limit counts it.
    Raises ValueError for a malformed url, ToolError when the server cannot be reached, refuses, or answers nonsense.

    server: its name in error messages. remedy: what to do if it does not answer; may contain {host} and {port}.
    health_field: a field of its /health beside "ready".
    """

    server: str
    remedy: str
    health_field: str

    def __init__(self, url: str, *, timeout_s: float, attempts: int, max_wait_s: float) -> None:
        try:
            parts = urlsplit(url)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            valid = False
        if not valid:
            raise ValueError(f"{self.server} url: given {url!r}, expected http://HOST:PORT.")
        self.url = url.rstrip("/")
        self._timeout_s, self._attempts, self._max_wait_s = timeout_s, attempts, max_wait_s
        self._start = self.remedy.format(host=parts.hostname, port=parts.port or 80)

    def health(self) -> dict[str, Any]:
        """The server's /health. Blocking, inside and outside of a running event loop.

        Raises:
            ToolError: no server answers, or it is none of verl_ext.
        """
        health = run_blocking(self._request("GET", "/health"))
        if not isinstance(health, dict) or health.get("ready") is not True or self.health_field not in health:
            raise ToolError(f"{self.url}/health answered {health!r:.200}: no {self.server} of verl_ext, or not ready.")
        return health

    async def _request(self, method: str, path: str, body: Any = None, session: Any = None) -> Any:
        """The answer to one request. session: None opens a connection for this request alone."""
        if session is None:
            return await self._served(method, path, body, session)
        turns = self._turns  # a blocking request, meanwhile, makes others
        with not_counted():
            await turns.acquire()
        try:
            return await self._served(method, path, body, session)
        finally:
            turns.release()

    async def _served(self, method: str, path: str, body: Any, session: Any) -> Any:
        """The answer to a request which has its turn, once the server is not busy."""
        wait = wait_random_exponential(multiplier=0.2, max=self._max_wait_s)
        try:
            for refused in itertools.count():
                try:
                    return await retrying(self._attempts, wait)(self._send, method, path, body, session)
                except ServerBusy as busy:
                    with not_counted():  # growing pauses: thousands of clients that ask every second are a load, too
                        pause = min(busy.after * 1.5 ** min(refused, 20), MAX_PAUSE_S)
                        await asyncio.sleep(pause * random.uniform(0.5, 1.5))
        except Transient as error:
            raise ToolError(
                f"no answer from the {self.server} at {self.url}{path} after {self._attempts} attempts ({error}). "
                f"{self._start}"
            ) from error

    async def _send(self, method: str, path: str, body: Any, session: Any) -> Any:
        if session is None:
            async with self._new_session() as own:
                return await self._send(method, path, body, own)
        try:
            with transient_failures(self._timeout_s):
                async with session.request(method, self.url + path, json=body) as response:
                    if response.status == 200:
                        return await response.json(content_type=None)
                    text = await response.text(errors="replace")
        except ValueError as error:
            raise ToolError(f"{self.url}{path} answered something that is not JSON: not a {self.server}?") from error
        after = response.headers.get("Retry-After", "")
        if response.status in (429, 503) and after.isdigit():
            raise ServerBusy(min(float(after), MAX_PAUSE_S))
        if response.status in RETRY_STATUS:
            raise Transient(f"status {response.status}: {text[:200]}")
        message = f"{self.url}{path} refused the request with status {response.status}: {text[:500]}"
        raise Refused(message, response.status, text)

    def _new_session(self) -> Any:
        import aiohttp

        token = os.environ.get(TOKEN)
        headers = {"Authorization": f"Bearer {token}"} if token else None
        self._turns = asyncio.Semaphore(CONCURRENT)
        return aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=self._timeout_s))
