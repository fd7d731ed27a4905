"""Strategies over systems with concurrent branches: fork points, entries and what never joins."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import FakeLLM, Script, forest_of, fork, now, run, speaker, walk
from tests.mas.programs import CountingTool, number, programs
from tests.mas.test_replay import check_fork, random_forest
from verl_ext.mas import Agent, Status
from verl_ext.mas.types import CallId, Stream
from verl_ext.sampling import make_strategy
from verl_ext.sampling.base import fork_all, fork_on, formula_calls


def both(*agents):
    """Two branches, x and y, each with these agents in turn; then agent d."""

    async def chain(child):
        said = ""
        for agent in agents:
            said = await child.call(agent, said=said)
        return said

    async def system(task, ctx):
        said = await asyncio.gather(ctx.branch("x", chain), ctx.branch("y", chain))
        return await ctx.call("d", said=said)

    return Script(system, {name: speaker(name) for name in "abcd"})


def sampled(strategy, system, delay=lambda request: 1.0, **options):
    async def scenario():
        forest = forest_of(system, FakeLLM(lambda r: f"{r.sampling['seed']}", delay))
        samples = await make_strategy(strategy, 3, list("abcd"), **options).sample(forest)
        return forest, samples, formula_calls(forest.trajectories), now()

    return run(scenario())


# --- fork points ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy,options", [("is", {}), ("rr", {"probabilities": [0, 0, 1.0, 0]})])
@pytest.mark.parametrize("slow", ["x", "y"])
def test_the_fork_point_does_not_depend_on_which_branch_is_faster(strategy, options, slow):
    def delay(request):
        return 5.0 if request.key[-1].startswith(slow) else 1.0

    forest, samples, _, _ = sampled(strategy, both("a", "c"), delay, **options)
    forked = {t.stream.fork for t in forest.trajectories if t.stream.fork and t.stream.fork.agent == "c"}
    assert forked == {CallId(("x",), "c", 0)}
    assert all(trajectory.ok for trajectory in forest.trajectories)
    assert Counter(sample.group for sample in samples)[("x", "c", "0")] == 3


@pytest.mark.parametrize("strategy,options", [("is", {}), ("rr", {"probabilities": [0, 1.0, 0, 0]})])
def test_the_fork_point_does_not_depend_on_when_a_sibling_branch_fails(strategy, options):
    """The base's x fails at a; whether y had already reached b, where it is forked, was a matter of speed."""

    async def chain(child):
        return await child.call("b", said=await child.call("a", said=""))

    async def system(task, ctx):
        return await asyncio.gather(ctx.branch("x", chain), ctx.branch("y", chain))

    def answer(request):
        failed = request.key[1:] == ("0", "x/a.0") or request.key[1:] == ("b", "x/a.0")
        return RuntimeError("gone") if failed else "said"

    def forks(slow):
        async def scenario():
            forest = forest_of(system, FakeLLM(answer, lambda r: 5.0 if r.key[-1].startswith(slow) else 1.0))
            await make_strategy(strategy, 3, list("abcd"), **options).sample(forest)
            return sorted(str(t.stream.fork) for t in forest.trajectories if t.stream.fork is not None)

        return run(scenario())

    assert forks("x") == forks("y") and "y/b.0" in forks("x")


def test_forks_outside_all_branches_start_at_once_and_those_inside_when_the_base_has_ended():
    async def scenario(agent):
        forest = forest_of(both("a"), FakeLLM(delay=lambda request: 1.0))
        await fork_on(forest, agent, 3)
        return now()

    assert run(scenario("d")) == 2.0
    assert run(scenario("a")) == 4.0


# --- concurrent entries ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slow", ["x", "y"])
def test_every_entry_call_has_a_group_of_samples_of_one_prompt(slow):
    forest, samples, formula, seconds = sampled(
        "fof", both("a", "b"), lambda request: 5.0 if request.key[-1].startswith(slow) else 1.0
    )
    places = [("x", "a", "0"), ("x", "b", "0"), ("y", "a", "0"), ("y", "b", "0"), ("d", "0")]
    assert Counter(sample.group for sample in samples) == dict.fromkeys(places, 3)
    assert forest.cost.agent_calls == formula == 15 and seconds == 11.0
    for place in places:
        calls = [sample.call for sample in samples if sample.group == place]
        assert len({call.text for call in calls}) == 3
        assert len({str(call.messages) for call in calls}) == (1 if place[1] == "a" else 3)


async def test_fork_on_first_shares_tools_before_the_entry_and_the_workflows_randomness():
    async def system(task, ctx):
        found = await ctx.tool("count", state=f"{ctx.rng.random()}")
        said = await ctx.call("a", found=found)
        again = await ctx.tool("count", state=said)
        return await ctx.call("b", again=again, draw=ctx.rng.random()), found, ctx.rng.random()

    tool = CountingTool(lambda state: 1.0)
    forest = forest_of(system, FakeLLM(delay=lambda request: 1.0), tools={"count": tool})
    trajectories = await fork_all(forest, 4)
    assert len(tool.results) == 1 + 4 and now() == 4.0
    assert len({t.calls[0].messages[0]["content"] for t in trajectories}) == 1
    assert len({t.result[1:] for t in trajectories}) == 1 and len({t.result[0] for t in trajectories}) == 4


@settings(max_examples=100)
@given(programs, st.integers(0, 10**6), st.data())
def test_twins_share_no_call_and_fork_like_any_trajectory(program, seed, data):
    async def scenario():
        forest, llm, _ = random_forest(program, seed)
        trajectories = await fork_all(forest, 3)
        assert all(t.ok for t in trajectories), [t.error for t in trajectories]
        assert len({call for t in trajectories for call in t.calls}) == sum(len(t.calls) for t in trajectories)
        assert len(trajectories) == (3 if trajectories[0].calls else 1)
        twin = trajectories[-1]
        for turn in range(2):
            if twin.calls:
                point = twin.calls[data.draw(st.integers(0, len(twin.calls) - 1))].id
                forked = await fork(forest, twin, point, f"{turn}")
                check_fork(twin, forked, point)
                twin = forked
        keys = [request.key for request in llm.log]
        assert len(set(keys)) == len(keys), "something was generated twice"

    run(scenario())


async def test_an_entry_prompt_that_differs_between_twins_is_divergence():
    seen = []

    async def system(task, ctx):
        seen.append(ctx)
        return await ctx.call("a", time=len(seen))

    workflow = Script(system, {"a": Agent(lambda time: [{"role": "user", "content": f"{time}"}])})
    base, twin = await fork_all(forest_of(workflow), 2)
    assert base.ok and twin.status is Status.DIVERGED and "call a.0 on replay" in twin.error
    assert (await walk(forest_of(workflow), Stream("0"))).ok


def test_fork_on_first_does_not_depend_on_scheduling_with_concurrent_entries():
    def outputs(delays):
        forest, samples, _, _ = sampled("fof", both("a", "c"), lambda r: number(f"{delays}{r.key}") % 9)
        return sorted((s.group, s.call.text) for s in samples), sorted(str(t.result) for t in forest.trajectories)

    assert outputs(1) == outputs(2) == outputs(3)
