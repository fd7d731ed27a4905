"""JSON over HTTP with this package's own servers: bounded retries, and errors with a remedy."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from verl_ext.tools.base import ToolError, ToolRefused

RETRY_STATUS = frozenset({429, 500, 502, 503, 504})


class Refused(ToolRefused):
    """The server refused a request (status 4xx); another attempt would be refused, too.

    status: HTTP status. text: the server's explanation.
    """

    def __init__(self, message: str, status: int, text: str) -> None:
        super().__init__(message)
        self.status, self.text = status, text


class _Transient(Exception):
    """A failure after which another attempt may succeed: no connection, time limit, or a status of RETRY_STATUS."""


class JsonClient:
    """Base class of the clients. A subclass adds its requests, `server` and `remedy`.

    url: http://HOST:PORT of the server. timeout_s: seconds for one attempt. attempts: tries per request, with
    exponential waits of at most `max_wait_s` seconds between them; refused requests (4xx) are not tried again.
    Raises ValueError for a malformed url, ToolError when the server cannot be reached, refuses, or answers nonsense.

    server: its name in error messages. remedy: what to do if it does not answer; may contain {host} and {port}.
    """

    server: str
    remedy: str

    def __init__(self, url: str, *, timeout_s: float, attempts: int, max_wait_s: float) -> None:
        try:
            parts = urlsplit(url)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            valid = False
        if not valid:
            raise ValueError(f"{self.server} url: given {url!r}, expected http://HOST:PORT.")
        if timeout_s <= 0 or attempts < 1 or max_wait_s < 0:
            raise ValueError(
                f"the client of a {self.server} needs timeout_s > 0, attempts >= 1 and max_wait_s >= 0, "
                f"given {timeout_s}, {attempts}, {max_wait_s}."
            )
        self.url = url.rstrip("/")
        self._timeout_s, self._attempts, self._max_wait_s = timeout_s, attempts, max_wait_s
        self._start = self.remedy.format(host=parts.hostname, port=parts.port or 80)
        self._session: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None and self._loop is asyncio.get_running_loop():
            await self._session.close()
        self._session = self._loop = None

    async def _request(self, method: str, path: str, body: Any, session: Any) -> Any:
        """The answer to one request. session: None opens a connection for this request alone."""
        from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

        retrying = AsyncRetrying(
            stop=stop_after_attempt(self._attempts),
            wait=wait_random_exponential(multiplier=0.2, max=self._max_wait_s),
            retry=retry_if_exception_type(_Transient),
            reraise=True,
        )
        try:
            async for attempt in retrying:
                with attempt:
                    return await self._send(method, path, body, session)
        except _Transient as error:
            raise ToolError(
                f"no answer from the {self.server} at {self.url}{path} after {self._attempts} attempts ({error}). "
                f"{self._start}"
            ) from error
        raise AssertionError("tenacity ended without an attempt")

    async def _send(self, method: str, path: str, body: Any, session: Any) -> Any:
        import aiohttp

        if session is None:
            async with self._new_session() as own:
                return await self._send(method, path, body, own)
        try:
            async with session.request(method, self.url + path, json=body) as response:
                if response.status in RETRY_STATUS:
                    text = await response.text(errors="replace")
                    raise _Transient(f"status {response.status}: {text[:200]}")
                if response.status != 200:
                    text = await response.text(errors="replace")
                    message = f"{self.url}{path} refused the request with status {response.status}: {text[:500]}"
                    raise Refused(message, response.status, text)
                return await response.json(content_type=None)
        except asyncio.TimeoutError as error:  # noqa: UP041 (in Python 3.10 not yet the same as TimeoutError)
            raise _Transient(f"no answer within {self._timeout_s} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _Transient(f"{type(error).__name__}: {error}") from error
        except ValueError as error:
            raise ToolError(f"{self.url}{path} answered something that is not JSON: not a {self.server}?") from error

    def _new_session(self) -> Any:
        import aiohttp

        return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._timeout_s))

    async def _open(self) -> Any:
        """The session of the running loop, kept until `aclose`; replaces one of a finished loop."""
        loop = asyncio.get_running_loop()
        if self._session is None or self._session.closed or self._loop is not loop:
            self._session, self._loop = self._new_session(), loop
        return self._session

    @staticmethod
    def _blocking(coroutine: Any) -> Any:
        with ThreadPoolExecutor(max_workers=1) as executor:  # a thread, because a loop may be running in this one
            return executor.submit(asyncio.run, coroutine).result()
