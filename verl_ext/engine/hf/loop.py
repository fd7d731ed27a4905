"""A SlotEngine in a thread of its own: other threads submit requests and commands, and get futures.

No future may hang. An error in a step fails the requests in flight, and the engine goes on; if the thread itself ends,
all waiting and later requests fail with the reason.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

from verl_ext.engine.hf.hardware import IdleThreads
from verl_ext.engine.hf.params import Finished, Request
from verl_ext.engine.hf.slots import SlotEngine

T = TypeVar("T")


class EngineLoop:
    """Owns the engine: only the loop's thread touches it.

    Args:
        make: sets the number of torch threads and returns the engine, idle. It runs in the loop's thread: libgomp
            starts threads for every thread that computes, and once there are more than cores, all of them sleep
            whenever they wait. Sampling with 135M parameters then takes 1.4 times as long.
        sharers: engines on this machine.

    Raises:
        Exception: what `make` raises.
    """

    def __init__(self, make: Callable[[], SlotEngine], sharers: int = 1) -> None:
        self._inbox: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any], bool]] = queue.SimpleQueue()
        self._futures: dict[int, Future[Any]] = {}  # id(request) -> its future
        self._held: deque[tuple[Request, Future[Any]]] = deque()  # requests that wait for a wave to end
        self._waves: deque[tuple[Sequence[Request], Future[Any]]] = deque()
        self._wave: list[Future[Any]] | None = None  # futures of the wave that runs
        self._paused = self._rejecting = self._closed = False
        self._death: BaseException | None = None
        made: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(make, sharers, made), name="decode", daemon=True)
        self._thread.start()
        made.result()

    # -- called from any thread ---------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Future[Finished]:
        """Run one request; it joins the running batch. While paused it waits (or is rejected, see `pause`)."""
        return self._post(lambda future: self._accept(request, future), deferred=True)

    def submit_wave(self, requests: Sequence[Request]) -> Future[list[Finished | ValueError]]:
        """Run exactly these requests, admitted in this order, from an empty cache, with nothing else in the batch.

        Waits until the engine is idle; later requests wait for the wave. The same list on the same weights gives the
        same bits. A request that cannot be run has its ValueError as result.
        """
        return self._post(lambda future: self._waves.append((requests, future)), deferred=True)

    def call(self, function: Callable[[SlotEngine], T]) -> Future[T]:
        """Run `function(engine)` between two steps. What it returns is the future's result.

        If that is a list of `Finished` (abort, load_weights, drop_kv), those requests' futures are resolved first.
        """

        def run(_: Future[Any]) -> T:
            result = function(self._engine)
            if isinstance(result, list):
                self._deliver([item for item in result if isinstance(item, Finished)])
            return result

        return self._post(run)

    def abort(self, which: Callable[[Request], bool]) -> Future[list[Finished]]:
        """End the chosen requests now, running, queued, or held back by a wave; they are returned as "aborted"."""

        def run(_: Future[Any]) -> list[Finished]:
            ended = self._engine.abort(which)
            self._deliver(ended)
            chosen = [pair for pair in self._held if which(pair[0])]
            self._held = deque(pair for pair in self._held if not which(pair[0]))
            for request, future in chosen:
                ended.append(Finished(request, [], [], "aborted"))
                future.set_result(ended[-1])
            return ended

        return self._post(run)

    def pause(self, reject: bool = False) -> Future[list[Finished]]:
        """Abort the running requests (partial results) and stop: queued and later requests wait for `resume`.

        Args:
            reject: do not let them wait, return them at once as aborted and empty.
        """

        def run(_: Future[Any]) -> list[Finished]:
            self._paused, self._rejecting = True, reject
            ended = self._engine.abort(waiting=reject or self._wave is not None)
            self._deliver(ended)
            if reject:
                self._reject_queued()
            return ended

        return self._post(run)

    def resume(self) -> Future[None]:
        """Go on after `pause`."""

        def run(_: Future[Any]) -> None:
            self._paused = self._rejecting = False

        return self._post(run)

    def close(self) -> None:
        """End the thread; unfinished requests fail."""
        self._post(lambda _: setattr(self, "_closed", True))
        self._thread.join()

    def _post(self, action: Callable[[Future[Any]], Any], deferred: bool = False) -> Future[Any]:
        """Have the thread run `action(future)`; unless `deferred`, its result resolves the future."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # no cancelling: the thread would race with it
        self._inbox.put((future, lambda: action(future), deferred))
        if self._death is not None:
            self._fail_inbox()
        return future

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self, make: Callable[[], SlotEngine], sharers: int, made: Future[None]) -> None:
        try:
            self._engine = make()
            self._threads = IdleThreads(torch.get_num_threads(), sharers)
        except BaseException as error:
            made.set_exception(error)
            return
        made.set_result(None)
        try:
            while not self._closed:
                self._read_inbox()
                if not self._paused:
                    self._start_wave()
                    if self._engine.busy:
                        self._step()
            self._die(RuntimeError("the decode loop was closed"))
        except BaseException as error:
            self._die(error)
            raise

    def _read_inbox(self) -> None:
        """Run the posted actions; if there is nothing else to do, wait for one."""
        idle = self._paused or not (self._engine.busy or self._waves or self._held)
        while idle or not self._inbox.empty():
            future, action, deferred = self._inbox.get()
            if idle:
                self._threads.begin()
            idle = False
            try:
                result = action()
                if not deferred:
                    future.set_result(result)
            except Exception as error:
                future.set_exception(error)

    def _step(self) -> None:
        self._threads.adapt()
        try:
            ended = self._engine.step()
        except Exception as error:
            for request in self._engine.reset():
                self._resolve(request, error)
        else:
            self._deliver(ended)

    def _accept(self, request: Request, future: Future[Any]) -> None:
        if self._paused and self._rejecting:
            future.set_result(Finished(request, [], [], "aborted"))
        elif self._wave is not None or self._waves:
            self._held.append((request, future))
        else:
            self._add(request, future)  # a ValueError resolves the future

    def _start_wave(self) -> None:
        """Begin the next wave once the engine is idle; after the last one let the held requests in."""
        if self._engine.busy or self._wave is not None:
            return
        if self._waves:
            requests, whole = self._waves.popleft()
            self._engine.reset()  # the cache grows the same way every time
            self._wave = [self._try_add(request) for request in requests]
            self._end_wave_with(whole)
        while self._held and not self._waves and self._wave is None:
            request, future = self._held.popleft()
            try:
                self._accept(request, future)
            except ValueError as error:
                future.set_exception(error)

    def _try_add(self, request: Request) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            self._add(request, future)
        except ValueError as error:
            future.set_result(error)
        return future

    def _add(self, request: Request, future: Future[Any]) -> None:
        if id(request) in self._futures:
            raise ValueError(f"request {request.request_id}: this object is running already; make another one")
        self._engine.add(request)
        self._futures[id(request)] = future

    def _end_wave_with(self, whole: Future[Any]) -> None:
        """Resolve `whole` when the last request of the wave that runs has ended."""
        parts = self._wave or []

        def check(_: Future[Any] | None = None) -> None:
            if not all(part.done() for part in parts) or whole.done():
                return
            self._wave = None
            failure = next((part.exception() for part in parts if part.exception()), None)
            if failure is not None:
                whole.set_exception(failure)
            else:
                whole.set_result([part.result() for part in parts])

        for part in parts:
            part.add_done_callback(check)
        check()

    def _deliver(self, ended: list[Finished]) -> None:
        for finished in ended:
            result: Finished | FloatingPointError = finished
            if finished.stop_reason == "nan":
                result = FloatingPointError(f"request {finished.request.request_id}: the model's logits are nan")
            self._resolve(finished.request, result)

    def _resolve(self, request: Request, result: Finished | BaseException) -> None:
        future = self._futures.pop(id(request))
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)

    def _reject_queued(self) -> None:
        for request, future in self._held:
            future.set_result(Finished(request, [], [], "aborted"))
        self._held.clear()
        for requests, whole in self._waves:
            whole.set_result([Finished(request, [], [], "aborted") for request in requests])
        self._waves.clear()

    def _die(self, error: BaseException) -> None:
        self._death = RuntimeError(f"the decode loop has ended: {type(error).__name__}: {error}")
        self._death.__cause__ = error
        waiting = [*self._futures.values(), *(future for _, future in (*self._held, *self._waves))]
        for future in waiting:
            if not future.done():
                future.set_exception(self._death)
        self._fail_inbox()

    def _fail_inbox(self) -> None:
        while True:
            try:
                future, _, _ = self._inbox.get_nowait()
            except queue.Empty:
                return
            if not future.done():
                future.set_exception(self._death)
