"""The attempts of one tool call: time limit, retries, threads for plain functions; and what sampling costs."""

from __future__ import annotations

import asyncio
import copy
import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from verl_ext.mas.limits import Limits
from verl_ext.mas.types import ToolRecord
from verl_ext.tools.base import ToolError, ToolRefused
from verl_ext.tools.threads import Threads, is_async
from verl_ext.tools.time_limits import within
from verl_ext.tracebacks import users_traceback


class BadToolCall(ValueError):
    """A call of a tool that there is not, or with arguments that it does not have: a bug, or an agent's mistake."""


@dataclass
class Cost:
    """What sampling this question has cost. A shared call counts once."""

    agent_calls: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    tool_calls: int = 0
    tool_retries: int = 0
    replayed_calls: int = 0
    without_forks: int = 0


async def attempt(
    record: ToolRecord, tool: Callable[..., Any], limits: Limits, cost: Cost, threads: Threads
) -> ToolRecord:
    """Call a tool with a timeout per attempt and bounded retries; a plain function runs in a thread.

    Returns:
        `record`, with the result or the failure, and when it began and ended.
    """
    record.began = time.time()
    try:
        return await _attempts(record, tool, limits, cost, threads)
    finally:
        record.ended = time.time()


async def _attempts(
    record: ToolRecord, tool: Callable[..., Any], limits: Limits, cost: Cost, threads: Threads
) -> ToolRecord:
    attempts = limits.tool_retries + 1
    for number in range(1, attempts + 1):
        cost.tool_calls += 1
        try:
            given = copy.deepcopy(record.arguments)
            if is_async(tool):
                record.result = await within(tool(**given), limits.tool_timeout)
            else:
                record.result = await threads.run(partial(tool, **given), limits.tool_timeout)
            record.failure = None
            return record
        except ToolRefused as error:
            record.failure = str(error)
            return record
        except asyncio.TimeoutError:
            record.failure = "; ".join(filter(None, ["TimeoutError: no answer in time", threads.state()]))
        except Exception as error:  # a tool's failure is an observation of this trajectory
            record.failure = f"{type(error).__name__}: {error}"
            record.trace = "" if isinstance(error, ToolError) else users_traceback(error)
        record.failure = f"tool {record.name!r}, attempt {number} of {attempts}: {record.failure}"
        if number < attempts:
            cost.tool_retries += 1
            await asyncio.sleep(limits.retry_wait * 2 ** (number - 1))
    return record


def check_tool(name: str, tools: Mapping[str, Callable[..., Any]], arguments: dict[str, Any]) -> None:
    """Refuse an unknown tool and wrong arguments: they are a bug of the workflow, not a tool that always fails.

    Raises:
        BadToolCall: names what is allowed.
    """
    if name not in tools:
        allowed = ", ".join(sorted(tools)) or "none"
        raise BadToolCall(f"unknown tool {name!r}; tools configured under mas.tools: {allowed}")
    try:
        inspect.signature(tools[name]).bind(**arguments)
    except TypeError as error:
        raise BadToolCall(
            f"tool {name!r} cannot be called with {', '.join(arguments) or 'nothing'}: {error}"
        ) from error
