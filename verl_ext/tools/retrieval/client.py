"""Client of the retrieval server (`python -m verl_ext.tools.retrieval_server`): one index shared by many processes."""

from typing import Any

from verl_ext.tools.base import ToolError
from verl_ext.tools.http.client import JsonClient
from verl_ext.tools.retrieval.types import MAX_K, MAX_QUERIES_PER_REQUEST, Hit, Passage, check_search
from verl_ext.tools.threads import run_blocking

# attempts x timeout and the waits between them must stay below the time limit of a tool call (mas.limits.tool_timeout,
# 60 s). Otherwise the call ends first, and its error hides that the server does not answer.
TIMEOUT_S, ATTEMPTS = 15.0, 3


class HttpRetriever(JsonClient):
    """Retriever that asks a server.

    Arguments and errors: see JsonClient.
    """

    backend = "http"
    server = "retrieval server"
    health_field = "passages"
    remedy = (
        "Start it with `python -m verl_ext.tools.retrieval_server --index INDEX --host {host} --port {port}`, "
        "or search a local index (mas.tools.search.index)."
    )

    def __init__(
        self, url: str, *, timeout_s: float = TIMEOUT_S, attempts: int = ATTEMPTS, max_wait_s: float = 5.0
    ) -> None:
        super().__init__(url, timeout_s=timeout_s, attempts=attempts, max_wait_s=max_wait_s)
        self._passages: int | None = None

    def __len__(self) -> int:
        """Number of passages of the server's index; asks the server once."""
        if self._passages is None:
            self._passages = int(self.health()["passages"])
        return self._passages

    def search(self, queries: list[str], k: int) -> list[list[Hit]]:
        """Blocking form of `asearch`, with its own connection. Works inside and outside of a running event loop."""
        return run_blocking(self._search(queries, k))

    async def asearch(self, queries: list[str], k: int) -> list[list[Hit]]:
        """One list of at most k hits per query. Long lists are sent in several requests, one after the other."""
        return await self._search(queries, k, self._open())

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
