"""Functions that hang, exit and never end, as tools: nobody else is blocked, and the process ends when it should."""

import asyncio
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from verl_ext.tools import ToolError
from verl_ext.tools.catalogue import Catalogue, Toolbox, ToolSpec
from verl_ext.tools.catalogue.formats.functions import function_tool

FREE = threading.Event()


def hang() -> None:
    """Never returns."""
    FREE.wait(120)


async def interrupt() -> None:
    """Says that the user has had enough."""
    raise KeyboardInterrupt(1)


async def echo(spec, arguments):
    return 7


class Leaving:
    """Ends the process when somebody looks at it."""

    def __init__(self, error):
        self.error = error

    @property
    def __class__(self):
        raise self.error


def test_a_function_that_hangs_blocks_nobody_else():
    toolbox = Toolbox(Catalogue([function_tool(hang), ToolSpec("echo", "")]), echo, timeout_s=0.3)

    async def run():
        hanging = [asyncio.ensure_future(toolbox(name="hang")) for _ in range(20)]
        await asyncio.sleep(0)
        return await toolbox(name="echo"), await asyncio.gather(*hanging, return_exceptions=True)

    try:
        answer, failures = asyncio.run(run())
    finally:
        FREE.set()
    assert answer == {"ok": True, "result": 7} and all(isinstance(failure, ToolError) for failure in failures)


def test_a_tool_cannot_interrupt_the_run():
    toolbox = Toolbox(Catalogue([function_tool(interrupt)]))
    with ThreadPoolExecutor(1) as worker:  # as in Ray's actors
        answer = worker.submit(lambda: asyncio.run(toolbox(name="interrupt"))).result()
    assert answer == {"ok": False, "error": "RuntimeError: KeyboardInterrupt: 1", "kind": "tool_error"}
    if sys.version_info >= (3, 11):  # asyncio.run handles Ctrl-C there
        assert asyncio.run(toolbox(name="interrupt")) == answer


@pytest.fixture
def heeded_sigint():
    """Python's own handler of SIGINT, also in a test run in the background of a shell, which inherits to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_ctrl_c_during_a_tool_ends_the_run(heeded_sigint):
    async def backend(spec, arguments):
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(60)

    toolbox = Toolbox(Catalogue([ToolSpec("tool", "")]), backend)

    async def run():
        return await toolbox(name="tool", arguments={})

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run())
    loop = asyncio.new_event_loop()  # with Python's own handler
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(run())
    loop.close()


@pytest.mark.parametrize("error", [SystemExit(1), GeneratorExit(), asyncio.CancelledError(), RuntimeError()])
def test_a_result_that_cannot_be_looked_at_is_unreadable(error):
    async def backend(spec, arguments):
        return {"a": Leaving(error)}

    toolbox = Toolbox(Catalogue([ToolSpec("tool", "")]), backend)
    answer = asyncio.run(toolbox(name="tool", arguments={}))
    assert answer == {"ok": True, "result": {"a": f"<unreadable: {type(error).__name__}>"}}
