"""Blocking calls of an event loop, in daemon threads."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


# Threads of synchronous tools at a time, in each rollout worker.
LIMIT = 64


class Threads:
    """Runs synchronous tools, at most `limit` at a time; further calls wait.

    A thread cannot be ended. One whose caller has gone (`tool_timeout`) keeps its place until its call returns.
    `left_behind` counts them.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit, self.left_behind = limit, 0
        self._free = asyncio.Semaphore(limit)

    async def run(self, call: Callable[[], Any], seconds: float | None = None) -> Any:
        """`call()` in a thread, see `in_thread`; an awaitable that it returns is awaited on the event loop.

        Raises:
            asyncio.TimeoutError: no result after `seconds`, from when the call had a thread.
        """
        await self._free.acquire()
        return await asyncio.wait_for(self._run(call), seconds)

    async def _run(self, call: Callable[[], Any]) -> Any:
        abandoned = ended = False

        def end() -> None:
            nonlocal ended
            ended = True
            self.left_behind -= abandoned
            self._free.release()

        try:
            result = await in_thread(call, end)
        except asyncio.CancelledError:
            abandoned = not ended
            self.left_behind += abandoned
            raise
        return await result if inspect.isawaitable(result) else result

    def state(self) -> str:
        """The threads left behind, in words; empty if there are none."""
        return f"{self.left_behind} of {self.limit} threads still run such calls" if self.left_behind else ""


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a function, or an object with `__call__`, is asynchronous."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def in_thread(call: Callable[[], Any], ended: Callable[[], None] = lambda: None) -> Any:
    """Run `call()` in a thread of its own and return its result. `ended` is called on the loop once the thread is done.

    The thread is a daemon, unlike those of an executor: a call that never returns blocks neither the event loop nor the
    end of the process. After a cancellation the thread runs on, and its result is dropped.

    Raises:
        Exception: raised by `call`; SystemExit and the like become a RuntimeError.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(result: Any, error: Exception | None) -> None:
        ended()
        if done.done():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(call)
        except BaseException as raised:  # all of them, or the caller would wait forever
            error = ordinary(raised)
        try:
            loop.call_soon_threadsafe(deliver, result, error)
        except RuntimeError:  # the event loop has ended meanwhile
            pass

    threading.Thread(target=work, daemon=True, name="tool").start()
    return await done


def run_blocking(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end from synchronous code, also while an event loop runs in this thread."""
    with ThreadPoolExecutor(max_workers=1) as executor:
        return executor.submit(asyncio.run, coroutine).result()


def ordinary(error: BaseException) -> Exception:
    """`error`, or a RuntimeError in its place if it would end more than this call (SystemExit, StopIteration, …)."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


def by_user(error: BaseException) -> bool:
    """Whether `error` may be a Ctrl-C rather than a KeyboardInterrupt that a tool raised.

    Ctrl-C raises one only in the main thread, and only while Python's own handler is installed. asyncio.run (from
    Python 3.11) installs another handler: the first Ctrl-C cancels its task.
    """
    in_main = threading.current_thread() is threading.main_thread()
    return (
        isinstance(error, KeyboardInterrupt)
        and in_main
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
