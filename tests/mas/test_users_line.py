"""An error in a user's code leads to the user's line, whichever part raises it."""

from __future__ import annotations

import asyncio
import warnings

import pytest

from tests.helpers import FakeLLM, Script, forest_of, run, speaker, walk
from verl_ext.mas import Agent, Status
from verl_ext.mas.forest import BrokenReward
from verl_ext.tools.base import ToolError
from verl_ext.tracebacks import users_traceback


def failed(system, **options):
    """The trajectory of a workflow that fails; no line of ours is in its trace."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # Python's own about a missing await
        trajectory = run(walk(forest_of(system, **options)))
    assert not trajectory.ok and "verl_ext" not in trajectory.trace and "asyncio/" not in trajectory.trace
    return trajectory


async def raises_in_run(task, ctx):
    await ctx.call("a")
    return task.extra["town"]


async def raises_in_a_branch(task, ctx):
    async def work(context):
        await context.call("a")
        return task.extra["town"]

    await asyncio.gather(ctx.branch("b", work), ctx.branch("c", work))


async def raises_from_another(task, ctx):
    try:
        task.extra["town"]
    except KeyError as error:
        raise LookupError("no town") from error


@pytest.mark.parametrize("system", [raises_in_run, raises_in_a_branch, raises_from_another])
def test_a_workflow_that_raises(system):
    trajectory = failed(system)
    assert trajectory.status is Status.WORKFLOW_ERROR
    assert 'test_users_line.py", line' in trajectory.trace and 'task.extra["town"]' in trajectory.trace
    assert "KeyError: 'town'" in trajectory.trace
    assert trajectory.trace.endswith("LookupError: no town" if system is raises_from_another else "KeyError: 'town'")


async def returns_a_call(task, ctx):
    return ctx.call("a")


async def writes_a_call_into_a_text(task, ctx):
    said = ctx.call("a")
    return await ctx.call("b", said=f"{said}")


async def hands_a_call_over(task, ctx):
    said = ctx.call("a")
    return await ctx.call("b", said=said)


async def drops_a_tool(task, ctx):
    ctx.tool("t")
    return await ctx.call("a")


@pytest.mark.parametrize("system", [returns_a_call, writes_a_call_into_a_text, hands_a_call_over, drops_a_tool])
def test_an_await_left_out(system):
    async def tool():
        return ""

    trajectory = failed(system, tools={"t": tool})
    place = f"{__file__}:{system.__code__.co_firstlineno + 1}"
    assert "never awaited" in trajectory.error and place in trajectory.error, trajectory.error


def test_a_call_that_is_cancelled_before_it_starts_is_no_missing_await():
    async def system(task, ctx):
        asyncio.ensure_future(ctx.call("a")).cancel()
        return await ctx.call("b")

    assert run(walk(forest_of(system))).ok


def ask_as_text(**inputs):
    return "how much?"


def ask_nobody(**inputs):
    return [{"role": "user", "content": None}]


async def asks(task, ctx):
    return await ctx.call("a")


@pytest.mark.parametrize("prompt", [ask_as_text, ask_nobody])
def test_a_prompt_that_is_no_list_of_messages(prompt):
    trajectory = failed(Script(asks, {"a": Agent(prompt)}))
    assert f"{prompt.__name__} ({__file__}:{prompt.__code__.co_firstlineno})" in trajectory.error
    assert "must return a list of messages" in trajectory.error and 'await ctx.call("a")' in trajectory.trace


def parses_badly(text, **inputs):
    return text.split()[99]


def parses_to_a_generator(text, **inputs):
    return (word for word in text)


def test_a_parser():
    trajectory = failed(Script(asks, {"a": speaker("a", parse=parses_badly)}))
    assert "return text.split()[99]" in trajectory.trace and "IndexError" in trajectory.trace
    trajectory = failed(Script(asks, {"a": speaker("a", parse=parses_to_a_generator)}))
    assert f"parses_to_a_generator ({__file__}:" in trajectory.error and "cannot be copied" in trajectory.error


async def uses_a_tool(task, ctx):
    return await ctx.tool("t")


def test_a_tool():
    async def breaks():
        return {}["country"]

    async def is_down():
        raise ToolError("no answer")

    trajectory = failed(uses_a_tool, tools={"t": breaks}, limits={"tool_retries": 0})
    assert trajectory.status is Status.TOOL_ERROR and 'return {}["country"]' in trajectory.trace
    assert trajectory.trace == trajectory.tools[0].trace, "also if the workflow goes on without the result"
    assert failed(uses_a_tool, tools={"t": is_down}, limits={"tool_retries": 0}).trace == "", "no error in its code"


def penalises_badly(text, value, parsable, /, **inputs):
    return text / 2, {}


def test_penalty_and_reward():
    with pytest.raises(BrokenReward, match=r"penalty of agent 'a', penalises_badly \(.*test_users_line.py:") as broken:
        run(walk(forest_of(Script(asks, {"a": speaker("a", penalty=penalises_badly)}))))
    trace = users_traceback(broken.value.__cause__)
    assert "return text / 2, {}" in trace and "verl_ext" not in trace and trace.endswith("'str' and 'int'")

    class Silent(Script):
        def reward(self, task, result):
            pass

    with pytest.raises(
        BrokenReward, match=r"Silent.reward \(.*test_users_line.py:\d+\) raised .*returned None.* on row 0 of"
    ):
        run(walk(forest_of(Silent(asks), FakeLLM())))
