"""Micro-batching of concurrent calls: many coroutines submit items, one call processes them together."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass
class _Submission:
    items: list[Any]
    done: "asyncio.Future[list[Any]]"


class AsyncBatcher(Generic[Item, Result]):
    """Collects the items of concurrent callers into one call of `run`.

    run: coroutine function, list of items -> one result per item, in the same order. Batches run one after the other;
        what arrives while one runs forms the next, so the batch size follows the load.
    max_batch: items after which a batch starts without waiting. One submission is never split: a larger one runs whole.
    max_delay_s: seconds the first caller of a batch waits for company.

    A caller that is cancelled before its batch starts is left out of it. An exception of `run` reaches every caller of
    that batch. One event loop at a time; a closed loop may be followed by
    a new one (successive `asyncio.run`).
    """

    def __init__(
        self,
        run: Callable[[list[Item]], Awaitable[Sequence[Result]]],
        *,
        max_batch: int = 64,
        max_delay_s: float = 0.005,
    ) -> None:
        if max_batch < 1 or max_delay_s < 0:
            raise ValueError(
                f"max_batch must be >= 1 and max_delay_s >= 0, given max_batch={max_batch}, max_delay_s={max_delay_s}."
            )
        self._run, self._max_batch, self._max_delay_s = run, max_batch, max_delay_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending: list[_Submission] = []
        self._worker: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Items of live callers that no batch has taken yet."""
        return sum(len(submission.items) for submission in self._pending if not submission.done.done())

    async def submit(self, items: Sequence[Item]) -> list[Result]:
        """Results of `items`, in order. No items: an empty list at once."""
        if not items:
            return []
        loop = self._attach()
        submission = _Submission(list(items), loop.create_future())
        self._pending.append(submission)
        if self._worker is None or self._worker.done():
            self._worker = loop.create_task(self._drain())
        return await submission.done

    async def close(self) -> None:
        """Stop the worker; callers still waiting are cancelled."""
        if self._worker is not None and self._loop is asyncio.get_running_loop() and not self._worker.done():
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        self._worker = None

    def _attach(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._pending and self._loop is not None and not self._loop.is_closed():
                raise RuntimeError("this batcher already serves another running event loop; make one per loop.")
            self._loop, self._pending, self._worker = loop, [], None
        return loop

    def _take(self) -> list[_Submission]:
        """The oldest submissions up to `max_batch` items (at least one submission); cancelled callers are left out."""
        live = [submission for submission in self._pending if not submission.done.done()]
        batch: list[_Submission] = []
        size = 0
        while live and (not batch or size + len(live[0].items) <= self._max_batch):
            batch.append(live.pop(0))
            size += len(batch[-1].items)
        self._pending = live
        return batch

    async def _drain(self) -> None:
        batch: list[_Submission] = []
        try:
            while self._pending:
                if self.waiting < self._max_batch:
                    await asyncio.sleep(self._max_delay_s)
                batch = self._take()
                if batch:
                    await self._process(batch)
        except asyncio.CancelledError:
            for submission in batch + self._pending:
                submission.done.cancel()
            self._pending = []
            raise

    async def _process(self, batch: list[_Submission]) -> None:
        items = [item for submission in batch for item in submission.items]
        try:
            results = list(await self._run(items))
            if len(results) != len(items):
                raise RuntimeError(f"a batch of {len(items)} items came back with {len(results)} results.")
        except Exception as error:  # handed to every caller of the batch, which raises it
            for submission in batch:
                if not submission.done.done():
                    submission.done.set_exception(error)
            return
        start = 0
        for submission in batch:
            end = start + len(submission.items)
            if not submission.done.done():
                submission.done.set_result(results[start:end])
            start = end
