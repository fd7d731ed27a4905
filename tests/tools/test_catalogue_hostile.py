"""Functions that hang, exit and never end, as tools: nobody else is blocked, and the process ends when it should."""

import asyncio
import subprocess
import sys
import threading
import time

from verl_ext.tools import ToolError
from verl_ext.tools.catalogue import Catalogue, Toolbox
from verl_ext.tools.catalogue.functions import function_tool

free = threading.Event()


def hang(x: int) -> int:
    """Never returns.

    Args:
        x: anything
    """
    free.wait(120)
    return x


def echo(x: int) -> int:
    """Says x.

    Args:
        x: anything
    """
    return x


def leave(x: int) -> int:
    """Ends the process, it thinks.

    Args:
        x: anything
    """
    sys.exit(x)


def generate(x: int) -> dict:
    """Yields for ever.

    Args:
        x: where to begin
    """
    while True:
        yield x


def test_a_function_that_hangs_blocks_nobody_else():
    toolbox = Toolbox(Catalogue([function_tool(hang), function_tool(echo)]), timeout_s=0.3)

    async def run():
        hanging = [asyncio.ensure_future(toolbox(name="hang", arguments={"x": i})) for i in range(20)]
        await asyncio.sleep(0)
        answer = await toolbox(name="echo", arguments={"x": 7})
        return answer, await asyncio.gather(*hanging, return_exceptions=True)

    try:
        answer, failures = asyncio.run(run())
    finally:
        free.set()
    assert answer == {"ok": True, "result": 7} and all(isinstance(failure, ToolError) for failure in failures)


def test_functions_that_exit_or_never_end_are_answered():
    toolbox = Toolbox(Catalogue([function_tool(leave), function_tool(generate)]))
    assert asyncio.run(toolbox(name="leave", arguments={"x": 1})) == {
        "ok": False,
        "error": "RuntimeError: SystemExit: 1",
        "kind": "tool_error",
    }
    assert asyncio.run(toolbox(name="generate", arguments={"x": 1})) == {"ok": True, "result": "<generator>"}


def test_a_hanging_function_does_not_keep_the_process():
    code = (
        "import asyncio\n"
        "from tests.tools.test_catalogue_hostile import Catalogue, Toolbox, ToolError, function_tool, hang\n"
        "try:\n"
        "    asyncio.run(Toolbox(Catalogue([function_tool(hang)]), timeout_s=0.1)(name='hang', arguments={'x': 1}))\n"
        "except ToolError:\n"
        "    print('left')\n"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.returncode) == ("left\n", 0), done.stderr
    assert time.monotonic() - start < 100  # the function itself would take 120 s
