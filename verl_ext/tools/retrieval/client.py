"""Client of the retrieval server (`python -m verl_ext.tools.retrieval_server`): one index shared by many processes."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from verl_ext.tools.base import ToolError
from verl_ext.tools.retrieval.types import MAX_K, MAX_QUERIES_PER_REQUEST, Hit, Passage, check_search

# attempts x timeout, with the waits between, must stay below the time limit of a tool call (mas.limits.tool_timeout,
# 60 s): otherwise the call ends first, and its error hides that the server does not answer.
TIMEOUT_S, ATTEMPTS = 15.0, 3
RETRY_STATUS = frozenset({429, 500, 502, 503, 504})
START = "Start it with `python -m verl_ext.tools.retrieval_server --index INDEX --host {host} --port {port}`"


class _Transient(Exception):
    """A failure worth another attempt: no connection, time limit, or a status of RETRY_STATUS."""


class HttpRetriever:
    """Retriever that asks a server.

    url: http://HOST:PORT of the server. timeout_s: seconds for one attempt. attempts: tries per request, with
    exponential waits of at most `max_wait_s` seconds between them; refused requests (4xx) are not tried again.
    Raises ValueError for a malformed url, ToolError when the server cannot be reached, refuses, or answers nonsense.
    """

    backend = "http"

    def __init__(
        self, url: str, *, timeout_s: float = TIMEOUT_S, attempts: int = ATTEMPTS, max_wait_s: float = 5.0
    ) -> None:
        try:
            parts = urlsplit(url)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            valid = False
        if not valid:
            raise ValueError(f"retrieval server url: given {url!r}, expected http://HOST:PORT.")
        if timeout_s <= 0 or attempts < 1 or max_wait_s < 0:
            raise ValueError(
                "the retrieval client needs timeout_s > 0, attempts >= 1 and max_wait_s >= 0, "
                f"given {timeout_s}, {attempts}, {max_wait_s}."
            )
        self.url = url.rstrip("/")
        self._timeout_s, self._attempts, self._max_wait_s = timeout_s, attempts, max_wait_s
        self._start = START.format(host=parts.hostname, port=parts.port or 80)
        self._session: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._passages: int | None = None

    def __len__(self) -> int:
        """Passages of the server's index (asked once)."""
        if self._passages is None:
            self._passages = int(self.health()["passages"])
        return self._passages

    def search(self, queries: list[str], k: int) -> list[list[Hit]]:
        """Blocking form of `asearch`, with a connection of its own; usable inside and outside a running event loop."""
        return self._blocking(self._search(queries, k))

    def health(self) -> dict[str, Any]:
        """The server's /health: {"ready": true, "backend": ..., "passages": n}. Blocking."""
        return self._blocking(self._health())

    async def asearch(self, queries: list[str], k: int) -> list[list[Hit]]:
        """One list of at most k hits per query. Long lists are sent in several requests, one after the other."""
        return await self._search(queries, k, await self._open())

    async def aclose(self) -> None:
        """Close the connections of `asearch`."""
        if self._session is not None and self._loop is asyncio.get_running_loop():
            await self._session.close()
        self._session = self._loop = None

    async def _search(self, queries: list[str], k: int, session: Any = None) -> list[list[Hit]]:
        queries = check_search(queries, k)
        if k > MAX_K:
            raise ValueError(f"k={k}: a retrieval server answers at most {MAX_K} documents per query; ask for fewer.")
        found: list[list[Hit]] = []
        for start in range(0, len(queries), MAX_QUERIES_PER_REQUEST):
            part = queries[start : start + MAX_QUERIES_PER_REQUEST]
            answer = await self._request("POST", "/search", {"queries": part, "k": k}, session)
            found += self._hits(answer, len(part))
        return found

    async def _health(self) -> dict[str, Any]:
        health = await self._request("GET", "/health", None, None)
        if not isinstance(health, dict) or health.get("ready") is not True or "passages" not in health:
            raise ToolError(
                f"{self.url}/health answered {health!r:.200}: no retrieval server of verl_ext, or not ready."
            )
        return health

    async def _request(self, method: str, path: str, body: Any, session: Any) -> Any:
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
                f"no answer from the retrieval server at {self.url}{path} after {self._attempts} attempts ({error}). "
                f"{self._start}, or search a local index (mas.tools.search.index)."
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
                    raise _Transient(f"status {response.status}: {(await response.text())[:200]}")
                if response.status != 200:
                    text = (await response.text())[:500]
                    raise ToolError(f"{self.url}{path} refused the request with status {response.status}: {text}")
                return await response.json(content_type=None)
        except asyncio.TimeoutError as error:  # noqa: UP041 (in Python 3.10 not yet the same as TimeoutError)
            raise _Transient(f"no answer within {self._timeout_s} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _Transient(f"{type(error).__name__}: {error}") from error
        except ValueError as error:
            raise ToolError(f"{self.url}{path} answered something that is not JSON: not a retrieval server?") from error

    def _hits(self, answer: Any, expected: int) -> list[list[Hit]]:
        try:
            lists = answer["hits"]
            if len(lists) != expected:
                raise ValueError(f"{len(lists)} lists for {expected} queries")
            return [
                [Hit(Passage(hit["pid"], hit["title"], hit["text"]), float(hit["score"])) for hit in hits]
                for hits in lists
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise ToolError(f"{self.url}/search answered in an unknown form ({error!r}); is it verl_ext's?") from error

    def _new_session(self) -> Any:
        import aiohttp

        return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._timeout_s))

    async def _open(self) -> Any:
        """The session of the running loop, kept until `aclose`; one that belonged to a finished loop is replaced."""
        loop = asyncio.get_running_loop()
        if self._session is None or self._session.closed or self._loop is not loop:
            self._session, self._loop = self._new_session(), loop
        return self._session

    @staticmethod
    def _blocking(coroutine: Any) -> Any:
        with ThreadPoolExecutor(max_workers=1) as executor:  # a thread, because a loop may be running in this one
            return executor.submit(asyncio.run, coroutine).result()
