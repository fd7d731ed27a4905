"""Contexts: identities of calls, the call graph, branches and sub-workflows."""

import asyncio

import pytest

from tests.helpers import Script, forest_of, run, walk
from verl_ext.mas.types import CallId, Status, Stream


def graph(trajectory):
    """Call -> parents, by their printed identities."""
    return {str(call.id): sorted(str(parent.id) for parent in call.parents) for call in trajectory.calls}


def test_parents_are_series_parallel_by_default():
    async def system(task, ctx):
        async def two(child):
            await child.call("a")
            await child.call("b")

        async def nothing(child):
            return None

        await ctx.call("a")
        await asyncio.gather(ctx.branch("x", two), ctx.branch("y", two), ctx.branch("z", nothing))
        await ctx.call("b")
        await asyncio.gather(ctx.call("c"), ctx.call("c"))
        await ctx.run(Script(lambda task, inner: inner.call("a")), task, name="sub")
        return await ctx.call("c")

    trajectory = run(walk(forest_of(system)))
    assert graph(trajectory) == {
        "a.0": [],
        "x/a.0": ["a.0"],
        "x/b.0": ["x/a.0"],
        "y/a.0": ["a.0"],
        "y/b.0": ["y/a.0"],
        "b.0": ["x/b.0", "y/b.0"],
        "c.0": ["b.0"],
        "c.1": ["b.0"],
        "sub/a.0": ["c.0", "c.1"],
        "c.2": ["sub/a.0"],
    }
    assert [str(sink.id) for sink in trajectory.sinks] == ["c.2"]
    assert [call.depth for call in trajectory.calls] == sorted(call.depth for call in trajectory.calls)


async def test_branches_made_inside_tasks_keep_their_parents_on_replay():
    async def system(task, ctx):
        async def part(name):
            await ctx.branch(name, lambda child: child.call("a"))

        await ctx.call("b")
        await asyncio.gather(part("x"), part("y"))
        await ctx.call("c")

    forest = forest_of(system)
    base = await walk(forest)
    forked = await walk(forest, Stream("fork", base.stream, CallId(("y",), "a", 0)))
    assert graph(base) == {"b.0": [], "x/a.0": ["b.0"], "y/a.0": ["b.0"], "c.0": ["x/a.0", "y/a.0"]}
    assert forked.ok and graph(forked) == graph(base)


def test_explicit_parents_and_open_ends():
    async def system(task, ctx):
        await ctx.call("a")
        planner = ctx.last
        await ctx.call("b", parents=[planner])
        await ctx.call("c", parents=[planner])

    trajectory = run(walk(forest_of(system)))
    assert graph(trajectory) == {"a.0": [], "b.0": ["a.0"], "c.0": ["a.0"]}
    assert sorted(str(sink.id) for sink in trajectory.sinks) == ["b.0", "c.0"]


def test_the_last_of_several_concurrent_calls_is_nobody():
    async def system(task, ctx):
        with pytest.raises(ValueError, match="no call has been answered yet"):
            _ = ctx.last
        await asyncio.gather(ctx.branch("x", lambda child: child.call("a")), ctx.branch("y", lambda c: c.call("b")))
        with pytest.raises(ValueError, match=r"the last are: x/a\.0, y/b\.0"):
            _ = ctx.last

    assert run(walk(forest_of(system))).ok


def test_scopes_that_come_again_and_names_with_a_meaning():
    async def system(task, ctx):
        for _ in range(2):
            await ctx.branch("x", lambda child: child.call("a"))
        with pytest.raises(ValueError, match="x#1"):
            ctx.branch("x#1", lambda child: child.call("a"))
        with pytest.raises(ValueError, match="unknown agent 'z'.*a, b, c"):
            ctx.call("z")
        with pytest.raises(ValueError, match="unknown tool 'web'.*none"):
            ctx.tool("web")

    assert list(graph(run(walk(forest_of(system))))) == ["x/a.0", "x#1/a.0"]


async def test_a_tool_that_is_called_wrongly_is_the_workflows_bug():
    async def search(query):
        return query

    forest = forest_of(lambda task, ctx: ctx.tool("search", text="q"), tools={"search": search})
    trajectory = await walk(forest)
    assert trajectory.status is Status.WORKFLOW_ERROR
    assert "tool 'search' cannot be called with text: missing a required argument: 'query'" in trajectory.error
