"""Blocking calls of an event loop, in daemon threads; and a Ctrl-C while something blocks."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

Result = TypeVar("Result")


# Seconds from a Ctrl-C until it is repeated, and until the process is ended, if it does not end by itself.
AGAIN_S, GRACE_S = 1.0, 4.0
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
        RuntimeError: no thread can be started.
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

    try:
        threading.Thread(target=work, daemon=True, name="tool").start()
    except RuntimeError:  # this user has too many threads
        ended()
        raise
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


@contextmanager
def interruptible(words: str) -> Iterator[None]:
    """Let one Ctrl-C end this block, inside `asyncio.run`, even if code blocks the event loop or does not clean up.

    The first Ctrl-C cancels asyncio's main task, which such code does not notice. `AGAIN_S` later another one is sent
    in the user's name, which raises KeyboardInterrupt in that code. `GRACE_S` after the first one the process prints
    `words` and ends with status 130.
    """
    handler, main = signal.getsignal(signal.SIGINT), threading.main_thread()
    if threading.current_thread() is not main or not callable(handler):
        yield
        return

    def end() -> None:
        print(words, file=sys.stderr, flush=True)
        os._exit(128 + signal.SIGINT)

    again = threading.Timer(AGAIN_S, signal.pthread_kill, (main.ident, signal.SIGINT))
    timers = [again, threading.Timer(GRACE_S, end)]

    def interrupt(number: int, frame: FrameType | None) -> None:
        for timer in timers:
            if timer.ident is None:  # not yet started
                timer.daemon = True
                timer.start()
        handler(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        for timer in timers:
            timer.cancel()
