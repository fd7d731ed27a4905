"""Replay: whatever the workflow, a fork repeats its prefix exactly, without generation and without tool traffic."""

import asyncio
import itertools
import math

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import FakeLLM, Script, forest_of, fork, now, run, speaker, walk
from tests.mas.programs import CountingTool, number, programs, workflow_of
from verl_ext.mas import Agent, Status
from verl_ext.mas.types import CallId, Stream


def below(trajectory, call):
    """The call and all calls of the trajectory that depend on it."""
    found = {call}
    for other in trajectory.calls:  # topological order
        if found.intersection(other.parents):
            found.add(other)
    return found


def random_forest(program, seed):
    """A forest in which no generation and no tool result ever comes twice, with random delays."""
    ticks = itertools.count()
    tool = CountingTool(lambda state: number(f"{seed}{state}{next(ticks)}") % 100 / 10)
    llm = FakeLLM(delay=lambda request: number(f"{seed}{request.key}") % 100 / 10)
    limits = {"max_prompt_tokens": 10**6, "max_calls": 10**4}
    forest = forest_of(workflow_of(program), llm, tools={"count": tool}, seed=seed, limits=limits)
    return forest, llm, tool


def check_fork(base, forked, call_id):
    """`forked` is `base` up to the fork, and new from there."""
    assert forked.status is Status.OK, forked.error
    original = next(call for call in base.calls if call.id == call_id)
    changed = below(base, original)
    shared = [call for call in base.calls if call not in changed]
    assert set(shared) <= set(forked.calls), "a call that does not depend on the fork was made again"
    assert not changed.intersection(forked.calls), "a call that depends on the fork was reused"
    twin = next(call for call in forked.calls if call.id == call_id)
    assert twin.text != original.text
    # The prompt digests all calls, tool results and random numbers before it.
    assert twin.messages == original.messages
    assert {call for call in forked.calls if call not in shared} == below(forked, twin)


@settings(max_examples=150)
@given(programs, st.integers(0, 10**6), st.data())
def test_forks_and_forks_of_forks_repeat_their_prefix(program, seed, data):
    async def scenario():
        forest, llm, tool = random_forest(program, seed)
        trajectories = [await walk(forest)]
        assert trajectories[0].ok, trajectories[0].error
        for number_of_fork in range(6):
            base = trajectories[data.draw(st.integers(0, len(trajectories) - 1))]
            if not base.calls:
                return
            call_id = base.calls[data.draw(st.integers(0, len(base.calls) - 1))].id
            generated, traffic = len(llm.log), len(tool.results)
            forked = await fork(forest, base, call_id, f"{number_of_fork}")
            check_fork(base, forked, call_id)
            fresh = [call for call in forked.calls if all(call not in old.calls for old in trajectories)]
            assert len(llm.log) - generated == len(fresh)
            if call_id == forked.calls[-1].id:
                assert len(llm.log) == generated + 1
            if "tool" not in str(program):
                assert len(tool.results) == traffic
            trajectories.append(forked)
        keys = [request.key for request in llm.log]
        assert len(set(keys)) == len(keys), "something was generated twice"
        assert forest.cost.agent_calls == len(keys)

    run(scenario())


@settings(max_examples=100)
@given(programs, st.integers(0, 10**6))
def test_all_forks_at_once_share_what_still_runs(program, seed):
    """Forks that start while their base is running: the prefix is awaited, not generated again."""

    async def scenario():
        reference = await walk(random_forest(program, seed)[0])
        forest, llm, _ = random_forest(program, seed)
        base, forks = Stream("0"), []
        for call in reference.calls[:1]:
            forks = [walk(forest, Stream(f"{i}", base, call.id)) for i in range(3)]
        done = await asyncio.gather(walk(forest, base), *forks)
        keys = [request.key for request in llm.log]
        assert len(set(keys)) == len(keys)
        for forked in done[1:]:
            check_fork(done[0], forked, reference.calls[0].id)

    run(scenario())


async def test_a_chain_forked_in_the_middle():
    tool = CountingTool(lambda state: 1.0)

    async def system(task, ctx):
        x = await ctx.call("a", q=task.question)
        y = await ctx.tool("count", state=x)
        z = await ctx.call("b", y=y)
        return await ctx.call("c", z=z)

    forest = forest_of(system, llm := FakeLLM(delay=lambda r: 1.0), tools={"count": tool})
    base = await walk(forest)
    assert now() == 4 and len(llm.log) == 3 and len(tool.results) == 1
    forked = await fork(forest, base, CallId((), "b", 0))
    assert now() == 6, "the prefix takes no time"
    assert [llm.count(agent) for agent in "abc"] == [1, 2, 2]
    assert tool.results == ["tool0"]
    assert forked.calls[0] is base.calls[0]
    assert forked.calls[1].messages == base.calls[1].messages
    assert forked.calls[2].messages != base.calls[2].messages
    assert forest.cost.replayed_calls == 1 and forest.cost.tool_calls == 1


def test_random_numbers_are_the_same_on_replay_and_differ_between_scopes_roots_and_questions():
    async def draws(seed, root):
        async def system(task, ctx):
            first = ctx.rng.random()
            await ctx.call("a")
            inner = await ctx.branch("inner", lambda child: asyncio.sleep(0, child.rng.random()))
            return first, ctx.rng.random(), inner

        forest = forest_of(system, seed=seed)
        base = await walk(forest, Stream(root))
        forked = await fork(forest, base, CallId((), "a", 0))
        assert forked.result == base.result
        return base.result

    one = run(draws(1, "0"))
    assert len(set(one)) == 3
    assert run(draws(1, "0")) == one
    assert not set(run(draws(2, "0"))) & set(one)
    assert not set(run(draws(1, "1"))) & set(one)


async def test_results_handed_out_are_copies():
    async def system(task, ctx):
        docs = await ctx.tool("search")
        docs.append("mine")
        await ctx.call("a", n=len(docs))
        return docs

    async def search():
        return ["d"]

    forest = forest_of(system, tools={"search": search})
    base = await walk(forest)
    forked = await fork(forest, base, CallId((), "a", 0))
    assert forked.ok and forked.result == ["d", "mine"]


async def test_a_prompt_function_may_hand_out_a_growing_history():
    async def system(task, ctx):
        history = []
        for turn in range(3):
            history.append({"role": "user", "content": f"turn {turn}"})
            history.append({"role": "assistant", "content": await ctx.call("a", history=history)})
        return len(history)

    workflow = Script(system, {"a": Agent(lambda history: history)})
    forest = forest_of(workflow)
    base = await walk(forest)
    assert [len(call.messages) for call in base.calls] == [1, 3, 5]
    for call in base.calls:
        forked = await fork(forest, base, call.id, f"at {call.id.turn}")
        assert forked.ok, forked.error
    assert len(forest.llm.log) == 3 + 3 + 2 + 1


# --- divergence -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("catches", [False, True])
async def test_a_prompt_that_differs_on_replay_is_reported_with_the_first_difference(catches):
    clock = itertools.count()

    async def system(task, ctx):
        try:
            await ctx.call("a", time=f"it is {next(clock)} now")
        except Exception:
            if not catches:
                raise
        return await ctx.call("b")

    forest = forest_of(system)
    base = await walk(forest)
    forked = await fork(forest, base, CallId((), "b", 0))
    assert base.ok and forked.status is Status.DIVERGED
    assert "it is 0 now" in forked.error and "it is 1 now" in forked.error
    assert "first difference at character" in forked.error and "ctx.rng" in forked.error
    assert forest.llm.count("a") == 1 and forest.llm.count("b") == 1, "nothing is generated after a divergence"


async def test_the_prompt_of_the_forked_call_itself_is_checked():
    clock = itertools.count()

    async def system(task, ctx):
        return await ctx.call("a", time=next(clock))

    forest = forest_of(system)
    base = await walk(forest)
    assert (await fork(forest, base, base.calls[0].id)).status is Status.DIVERGED


@pytest.mark.parametrize(
    "value",
    [lambda: float("nan"), lambda: {"scores": [1.0, numpy.float64("nan")]}, lambda: numpy.array([0.5, math.nan])],
)
async def test_equal_arguments_are_the_same_whatever_they_say_of_each_other(value):
    """NaN is not equal to NaN, and of arrays it cannot be asked: forks diverged, or failed, before their fork."""

    async def program(task, ctx):
        return await ctx.call("b", said=await ctx.call("a", said=await ctx.tool("rank", by=value())))

    async def rank(by):
        return str(by)

    forest = forest_of(program, tools={"rank": rank})
    base = await walk(forest)
    forked = await fork(forest, base, base.calls[1].id)
    assert forked.ok, forked.error
    assert forest.cost.tool_calls == 1


async def test_other_arguments_of_a_tool_and_a_fork_point_never_reached_are_divergence():
    clock = itertools.count()

    async def echo(x):
        return 0

    async def system(task, ctx):
        await ctx.tool("echo", x=next(clock))
        await ctx.call("a")

    async def shrinking(task, ctx):
        if next(clock) < 5:
            await ctx.call("b")

    forest = forest_of(system, tools={"echo": echo})
    forked = await fork(forest, await walk(forest), CallId((), "a", 0))
    assert forked.status is Status.DIVERGED and "tool:echo.0" in forked.error
    clock = itertools.count(4)
    forest = forest_of(shrinking)
    forked = await fork(forest, await walk(forest), CallId((), "b", 0))
    assert forked.status is Status.DIVERGED and "not reached again" in forked.error


async def test_a_branch_that_uses_another_one_without_saying_so_forks_too():
    """s1 waits for s0 through an event, not through the call graph; its prompt shows the fork's effect."""

    async def system(task, ctx):
        ready, box = asyncio.Event(), []

        async def first(child):
            box.append(await child.call("a"))
            ready.set()

        async def second(child):
            await ready.wait()
            return await child.call("b", seen=box[0])

        _, said = await asyncio.gather(ctx.branch("s0", first), ctx.branch("s1", second))
        return await ctx.call("c", said=said)

    forest = forest_of(system)
    base = await walk(forest)
    forked = await fork(forest, base, CallId(("s0",), "a", 0))
    again = await fork(forest, forked, CallId((), "c", 0), "again")
    assert base.ok and forked.ok and again.ok, again.error
    assert forked.calls[1] is not base.calls[1] and again.calls[:2] == forked.calls[:2]
    assert [forest.llm.count(agent) for agent in "abc"] == [2, 2, 3]


async def test_a_call_with_explicit_parents_after_the_fork_is_sampled_anew():
    """`parents=` are edges for credit. The call comes after the fork, so whether the fork gets there before its base
    must not matter."""

    async def system(task, ctx):
        await ctx.call("a")
        first = ctx.last
        said = await ctx.call("b")
        return await ctx.call("c", parents=[first], said=said)

    slow = FakeLLM(delay=lambda request: 5.0 if request.key[-1] == "b.0" and len(request.key) == 3 else 0.0)
    forest = forest_of(Script(system, {name: speaker(name) for name in "abc"}), slow)
    base, forked = await asyncio.gather(walk(forest), walk(forest, Stream("x", Stream("0"), CallId((), "b", 0))))
    assert base.ok and forked.ok, (base.error, forked.error)
    assert [forest.llm.count(agent) for agent in "abc"] == [1, 2, 2]
    last = [next(call for call in t.calls if call.agent == "c") for t in (base, forked)]
    assert last[0] is not last[1] and [call.parents for call in last] == [(base.calls[0],)] * 2
