"""Concurrent searches become one call of the retriever. The search tools and the retrieval server share this."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

from verl_ext.tools.retrieval.types import Hit, Retriever, check_search
from verl_ext.tools.time_limits import not_counted

# Queries after which a batch starts without waiting, and seconds that the first caller of a batch waits for others.
MAX_BATCH, MAX_DELAY_S = 64, 0.005


class _Request(NamedTuple):
    queries: list[str]
    k: int
    answer: "asyncio.Future[list[list[Hit]]]"
    turn: ExitStack  # closed when the search has its turn: from then on time limits count


class BatchedRetriever:
    """Asynchronous interface of a retriever: concurrent searches become one call, in a thread of its own.

    Batches run one after the other: searches that arrive while one runs form the next, so the batch size follows the
    load. The queries of one search are never split. Results equal those of separate calls, because a backend scores
    each query alone. A retriever with a coroutine `asearch` (HttpRetriever) is awaited instead of run in the thread.

    Time limits around a search (`time_limits.within`) count from the begin of its batch.

    A search that is cancelled before its batch starts is left out. An error of the retriever reaches every caller of
    the batch. One event loop at a time; after it is closed, another one may follow (successive `asyncio.run`).
    """

    def __init__(self, retriever: Retriever) -> None:
        self.retriever: Any = retriever
        self._remote = hasattr(retriever, "asearch")
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="retriever")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending: list[_Request] = []
        self._worker: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Queries that no batch has taken yet and whose callers still wait."""
        return sum(len(request.queries) for request in self._pending if not request.answer.done())

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """As `Retriever.search`, without blocking the event loop."""
        cleaned = check_search(queries, k)
        if not cleaned:
            return []
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._pending and self._loop is not None and not self._loop.is_closed():
                raise RuntimeError("this retriever already serves another running event loop; make one per loop.")
            self._loop, self._pending, self._worker = loop, [], None
        with ExitStack() as turn:
            turn.enter_context(not_counted())
            request = _Request(cleaned, k, loop.create_future(), turn)
            self._pending.append(request)
            if self._worker is None or self._worker.done():
                self._worker = loop.create_task(self._work())
            return await request.answer

    async def close(self) -> None:
        """Cancel the searches that still wait, stop the thread, and close the retriever's connections if it has any."""
        if self._worker is not None and self._loop is asyncio.get_running_loop() and not self._worker.done():
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
            for request in self._pending:  # of a worker that had not begun
                request.answer.cancel()
            self._pending = []
        self._worker = None
        self._executor.shutdown(wait=False, cancel_futures=True)
        if hasattr(self.retriever, "close"):
            await self.retriever.close()

    async def _work(self) -> None:
        """Answer batch after batch until no search waits."""
        batch: list[_Request] = []
        try:
            while self._pending:
                if self.waiting < MAX_BATCH:
                    await asyncio.sleep(MAX_DELAY_S)
                batch = self._next_batch()
                await self._answer(batch)
        except asyncio.CancelledError:
            for request in batch + self._pending:
                request.answer.cancel()
            self._pending = []
            raise

    def _next_batch(self) -> list[_Request]:
        """The oldest requests, at least one, with at most MAX_BATCH queries; cancelled ones are left out."""
        self._pending = [request for request in self._pending if not request.answer.done()]
        count, size = 0, 0
        for request in self._pending:
            size += len(request.queries)
            if count and size > MAX_BATCH:
                break
            count += 1
        batch, self._pending = self._pending[:count], self._pending[count:]
        return batch

    async def _answer(self, batch: list[_Request]) -> None:
        if not self._remote:  # a client keeps a limit of its own, which does not count the server's queue
            for request in batch:
                request.turn.close()
        try:
            hits: dict[tuple[str, int], list[Hit]] = {}
            for k in sorted({request.k for request in batch}):
                # Samples of one question repeat its queries: each is searched once.
                queries = list(dict.fromkeys(query for request in batch if request.k == k for query in request.queries))
                hits |= {(query, k): found for query, found in zip(queries, await self._call(queries, k), strict=True)}
        except Exception as error:  # raised by every caller of the batch
            for request in batch:
                if not request.answer.done():
                    request.answer.set_exception(error)
            return
        for request in batch:
            if not request.answer.done():
                request.answer.set_result([hits[query, request.k] for query in request.queries])

    async def _call(self, queries: list[str], k: int) -> list[list[Hit]]:
        if self._remote:
            return await self.retriever.asearch(queries, k)
        return await asyncio.get_running_loop().run_in_executor(self._executor, self.retriever.search, queries, k)
