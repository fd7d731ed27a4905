"""Runs programs: asynchronous ones on an event loop that they share, and those in processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import threading
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from verl_ext.mas.json_texts import read_json

# Bytes of a process's standard error that an error shows, and of a piece that is read.
SHOWN, PIECE = 2000, 65_536
# Seconds that a process has between SIGTERM and SIGKILL.
GRACE_S = 2.0
# Seconds for which the pipes of a program that has ended are waited for, and naps that make them up: the event loop
# reads between two naps, so that a busy machine loses nothing.
LINGER_S, NAPS = 1.0, 20
# Seconds after which an event loop that does not answer counts as blocked.
BLOCKED_S = 3.0


class ProgramLoop:
    """The event loop of all asynchronous programs of this process, in a thread of its own.

    One loop, not one for each program: clients keep connections open for the next run (LangChain does so in a cache of
    its own), and a connection fails on any other loop than the one that opened it.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, program: Coroutine[Any, Any, Any]) -> Any:
        """The program's result. If this is cancelled, so is the program; one that blocks the loop is left there, and
        later programs get another loop."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="verl_ext programs", daemon=True).start()
        loop = self._loop
        work = asyncio.run_coroutine_threadsafe(program, loop)
        try:
            return await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            work.cancel()
            if not await _answers(loop) and self._loop is loop:
                self._loop = None
            raise


async def _answers(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether an event loop in another thread runs, and is not blocked."""
    here, answered = asyncio.get_running_loop(), asyncio.Event()

    def answer() -> None:
        with contextlib.suppress(RuntimeError):  # too late: the asking loop has closed
            here.call_soon_threadsafe(answered.set)

    loop.call_soon_threadsafe(answer)
    try:
        await asyncio.wait_for(answered.wait(), BLOCKED_S)
    except asyncio.TimeoutError:
        return False
    return True


PROGRAMS = ProgramLoop()


def environment_of(url: str, key: str, seed: int) -> dict[str, str]:
    """The variables by which clients of OpenAI and Anthropic find a trajectory, and the program its seed."""
    here = ",".join(dict.fromkeys(["127.0.0.1", "localhost", str(urlsplit(url).hostname)]))  # not through a proxy
    return {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_BASE": f"{url}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": key,
        "VERL_EXT_SEED": str(seed),
        "PYTHONHASHSEED": "0",
        **{name: ",".join(filter(None, [os.environ.get(name), here])) for name in ("NO_PROXY", "no_proxy")},
    }


class _Protocol(asyncio.subprocess.SubprocessStreamProtocol):
    """Tells when the process itself has ended. asyncio's `wait` also waits for its pipes, which a child may hold."""

    def __init__(self) -> None:
        super().__init__(limit=PIECE, loop=asyncio.get_running_loop())
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        """See `asyncio.SubprocessProtocol`."""
        super().process_exited()
        self.exited.set()


class _Process:
    """A process that has been started, as the leader of a process group of its own."""

    def __init__(self, transport: asyncio.SubprocessTransport, protocol: _Protocol) -> None:
        self._transport, self.exited = transport, protocol.exited
        self.stdin, self.stdout, self.stderr = protocol.stdin, protocol.stdout, protocol.stderr

    @property
    def status(self) -> int | None:
        """With which it has ended."""
        return self._transport.get_returncode()

    async def finish(self, reading: asyncio.Future[Any]) -> None:
        """Wait until it has ended, and for what is in its pipes; not for a child that it has left with them."""
        exited = asyncio.ensure_future(self.exited.wait())
        try:
            await asyncio.wait([exited, reading], return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and reading.exception() is None:
                await exited
        finally:
            exited.cancel()
        for last in (False, True):
            for _ in range(NAPS):
                await asyncio.wait([reading], timeout=LINGER_S / NAPS)
                if reading.done():
                    return
            self.close() if last else self._signal(signal.SIGKILL)

    async def end(self) -> None:
        """End it and all that it has started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._signal(signal.SIGKILL if self.exited.is_set() else number)
            if not self.exited.is_set():
                with contextlib.suppress(asyncio.TimeoutError, asyncio.CancelledError):
                    await asyncio.wait_for(self.exited.wait(), GRACE_S)
        self.close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._transport.get_pid(), number)

    def close(self) -> None:
        """Close the pipes on this side: readers get what has arrived."""
        if self.stdin is not None and self.stdin.transport.get_write_buffer_size():
            self.stdin.transport.abort()  # `close` would wait until everything is written
        self._transport.close()


async def run_process(
    command: Sequence[str], given: str, environment: Mapping[str, str], folder: str | None, most: int
) -> str:
    """What a process prints on its standard output. It, and what it has started, ends with this coroutine.

    Args:
        given: its standard input.
        environment: variables besides those of this process.
        most: bytes that it may print.

    Raises:
        RuntimeError: it cannot be started, prints too much, or ends with another status than 0.
    """
    try:
        transport, protocol = await asyncio.get_running_loop().subprocess_exec(
            _Protocol,
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **environment},
            cwd=folder,
            start_new_session=True,
        )
    except OSError as error:
        raise RuntimeError(f"the program {' '.join(command)} cannot be started: {error}") from error
    process = _Process(transport, protocol)
    reading = asyncio.gather(_read(process.stdout, most), _tail(process.stderr), _write(process.stdin, given))
    try:
        await process.finish(reading)
        output, errors, _ = await reading
    finally:
        reading.cancel()
        await process.end()
    if process.status:
        shown = errors.decode("utf-8", "replace").strip()
        raise RuntimeError(f"the program {' '.join(command)} ended with status {process.status}:\n{shown}")
    return output.decode("utf-8", "replace")


async def _write(stream: Any, given: str) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it need not read its input
        stream.write(given.encode())
        await stream.drain()
    stream.close()


async def _read(stream: Any, most: int) -> bytes:
    parts, size = [], 0
    while part := await stream.read(PIECE):
        size += len(part)
        if size > most:
            raise RuntimeError(f"the program prints more than mas.gateway.max_body={most} bytes")
        parts.append(part)
    return b"".join(parts)


async def _tail(stream: Any) -> bytes:
    last: deque[int] = deque(maxlen=SHOWN)
    while part := await stream.read(PIECE):
        last.extend(part[-SHOWN:])
    return bytes(last)


def result_of(output: str) -> Any:
    """A program's result: the last line that it has printed. A JSON object or list is read, anything else is a text.

    So a program that prints its answer has a text as its result, whatever the answer looks like: 42, true, null.
    """
    lines = [line for line in re.split("[\r\n]", output) if line.strip()]  # `splitlines` knows further line ends
    if not lines:
        return ""
    last = lines[-1].strip()
    if last.startswith(("{", "[")):
        with contextlib.suppress(ValueError, RecursionError):
            return read_json(last)
    return last
