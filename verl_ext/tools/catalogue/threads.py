"""Blocking calls beside an event loop, in threads that nobody has to wait for."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
from collections.abc import Callable
from typing import Any


async def in_thread(call: Callable[[], Any]) -> Any:
    """The result of `call()`, made in a thread of its own.

    A daemon, unlike those of an executor: a call that never returns keeps neither the event loop nor the end of the
    process. Cancelled, it is left to itself.

    Raises:
        Exception: what `call` raises; what is no ordinary exception (sys.exit in a tool) as a RuntimeError.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(result: Any, error: Exception | None) -> None:
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
        except BaseException as raised:  # everything, or the caller would wait for ever
            error = ordinary(raised)
        try:
            loop.call_soon_threadsafe(deliver, result, error)
        except RuntimeError:  # the loop has ended meanwhile, and its callers with it
            pass

    threading.Thread(target=work, daemon=True, name="tool").start()
    return await done


def ordinary(error: BaseException) -> Exception:
    """`error`, or a RuntimeError in place of one that would end more than this call (SystemExit, StopIteration, …)."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


def by_user(error: BaseException) -> bool:
    """Whether `error` may be a Ctrl-C, rather than the KeyboardInterrupt of a tool.

    Only the main thread gets one, and only while Python's own handler is in place. asyncio.run (from Python 3.11) has
    another one: the first Ctrl-C cancels its task, so that the run ends whatever becomes of later ones.
    """
    in_main = threading.current_thread() is threading.main_thread()
    return (
        isinstance(error, KeyboardInterrupt)
        and in_main
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
