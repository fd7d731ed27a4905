"""Forests: tools with retries, sampling parameters, noise that knows no scheduling, and cleaning up."""

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import FakeLLM, Script, chain, forest_of, fork, now, run, speaker, walk
from tests.mas.programs import number
from verl_ext.mas import Agent, Status, ToolFailed
from verl_ext.mas.noise import call_seed, derive_seed
from verl_ext.mas.types import CallId, Generation, Stream
from verl_ext.sampling import make_strategy
from verl_ext.tools.base import ToolError, ToolRefused

# --- tools ----------------------------------------------------------------------------------------------------------


class Flaky:
    """A tool that fails `failures` times and then answers; "hang" never does."""

    def __init__(self, failures):
        self.failures = failures
        self.attempts = []

    async def __call__(self, **arguments):
        self.attempts.append((now(), arguments))
        if self.failures == "hang":
            await asyncio.Event().wait()
        arguments["queries"].append("spoilt by the tool")
        if len(self.attempts) <= self.failures:
            raise ToolError("the server is down")
        return ["document"]


async def search(task, ctx):
    return await ctx.tool("search", queries=["q"])


def searched(tool, run_search=search, **limits):
    async def scenario():
        forest = forest_of(run_search, tools={"search": tool}, limits=limits)
        return forest, await walk(forest), now()

    return run(scenario())


def test_a_tool_that_fails_at_first_is_tried_again_after_growing_waits():
    tool = Flaky(2)
    forest, trajectory, _ = searched(tool, tool_retries=2, retry_wait=0.5)
    assert trajectory.ok and trajectory.result == ["document"] and trajectory.tool_failures == 0
    assert tool.attempts == [(t, {"queries": ["q", "spoilt by the tool"]}) for t in (0.0, 0.5, 1.5)]
    assert forest.cost.tool_calls == 3 and forest.cost.tool_retries == 2


def test_a_tool_that_keeps_failing_ends_the_trajectory_after_bounded_retries():
    forest, trajectory, _ = searched(Flaky(99), tool_retries=2)
    assert trajectory.status is Status.TOOL_ERROR and trajectory.tool_failures == 1
    assert "'search', attempt 3 of 3: ToolError: the server is down" in trajectory.error
    assert forest.cost.tool_calls == 3


def test_a_tool_that_refuses_is_not_asked_again():
    async def refuses(queries):
        raise ToolRefused("search is off")

    forest, trajectory, seconds = searched(refuses, tool_retries=2)
    assert trajectory.status is Status.TOOL_ERROR and trajectory.tool_failures == 1 and seconds == 0
    assert "search is off" in trajectory.error and "attempt" not in trajectory.error
    assert forest.cost.tool_calls == 1 and forest.cost.tool_retries == 0


def test_a_hanging_tool_is_given_up():
    _, trajectory, seconds = searched(Flaky("hang"), tool_timeout=10.0, tool_retries=1, retry_wait=0.5)
    assert trajectory.status is Status.TOOL_ERROR and "no answer in time" in trajectory.error
    assert seconds == 20.5


async def test_a_forest_is_busy_in_the_waits_between_attempts():
    forest = forest_of(search, tools={"search": Flaky(1)}, limits={"tool_retries": 1, "retry_wait": 8.0})
    session = asyncio.ensure_future(walk(forest))
    seen = []
    for _ in range(3):
        await asyncio.sleep(3)
        seen.append(forest.busy)
    await session
    assert seen == [1, 1, 0]


async def test_a_workflow_may_go_on_without_the_tool_and_a_fork_meets_the_same_failure():
    async def careful(task, ctx):
        try:
            docs = await ctx.tool("search", queries=["q"])
        except ToolFailed:
            docs = []
        return await ctx.call("a", docs=docs)

    forest = forest_of(careful, tools={"search": Flaky(3)}, limits={"tool_retries": 2})
    base = await walk(forest)
    forked = await fork(forest, base, CallId((), "a", 0))
    assert base.ok and forked.ok and forked.calls[0].messages == base.calls[0].messages
    assert forest.cost.tool_calls == 3 and base.tool_failures == forked.tool_failures == 1


# --- sampling parameters and noise ----------------------------------------------------------------------------------


def test_agents_override_the_sampling_parameters_but_greedy_validation_keeps_its_own():
    agents = {"a": speaker("a", sampling={"top_p": 0.3, "max_tokens": 5}), "b": speaker("b")}
    sampling = {"temperature": 1.0, "top_p": 0.9, "top_k": -1, "max_tokens": 99}

    def sent(greedy):
        forest = forest_of(Script(chain, agents), sampling=sampling, greedy=greedy)
        run(walk(forest))
        return [{k: v for k, v in request.sampling.items() if k != "seed"} for request in forest.llm.log]

    assert sent(False) == [sampling | {"top_p": 0.3, "max_tokens": 5}, sampling]
    assert sent(True) == [sampling | {"max_tokens": 5}, sampling]
    with pytest.raises(ValueError, match="has temperature; allowed: top_p, top_k, max_tokens"):
        speaker("a", sampling={"temperature": 0.3})


@pytest.mark.parametrize("stop", ["", 5, ["a", ""], ["a", 5], [["a"]], b"a"])
def test_stop_is_a_text_or_several(stop):
    agent = Agent(sampling={"stop": "END"})
    assert agent.sampling == {"stop": ["END"]}
    assert agent.changed(sampling={"stop": "###"}).sampling == {"stop": ["###"]}
    assert agent.changed(sampling={"stop": ("a", "b")}).sampling == {"stop": ["a", "b"]}
    with pytest.raises(ValueError, match=r"Agent.sampling: stop=.*; allowed: a text, or a list of texts, none of them"):
        agent.changed(sampling={"stop": stop})


def seeds_of(strategy, seed, delays):
    async def scenario():
        llm = FakeLLM(lambda r: f"{r.sampling['seed']}", lambda r: number(f"{delays}{r.key}") % 9)
        forest = forest_of(chain, llm, seed=seed)
        await make_strategy(strategy, 3, list("abc")).sample(forest)
        return {request.key[1:]: (request.sampling["seed"], request.prompt) for request in llm.log}

    return run(scenario())


@settings(max_examples=15)
@given(st.sampled_from(["fof", "is", "rr", "nmc"]), st.integers(0, 99), st.integers(), st.integers())
def test_seeds_and_prompts_do_not_depend_on_scheduling(strategy, seed, delays, other_delays):
    once = seeds_of(strategy, seed, delays)
    assert seeds_of(strategy, seed, other_delays) == once
    assert len({seed for seed, _ in once.values()}) == len(once), "every call has a seed of its own"


def test_every_part_of_a_call_changes_its_seed():
    root = Stream("0")
    streams = [root, Stream("1"), Stream("x", root, CallId((), "a", 0)), Stream("y", root, CallId((), "a", 0))]
    places = [((), "a", 0), ((), "a", 1), ((), "b", 0), (("s",), "a", 0), (("s", "t"), "a", 0)]
    calls = [CallId(*place) for place in places]
    seeds = [call_seed(q, s, c) for q, s, c in itertools.product((1, 2), streams, calls)]
    assert len(set(seeds)) == 2 * 4 * 5
    assert all(0 <= seed < 2**63 for seed in seeds)
    # Stable across processes and versions: part of what a checkpoint promises.
    assert derive_seed(1, "validate", 7) == 2071151443363790775


# --- cleaning up ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["fof", "is", "rr", "nmc"])
@pytest.mark.parametrize("agent", "abc")
async def test_a_broken_penalty_surfaces_and_leaves_nothing_behind(strategy, agent):
    def broken(*_, **__):
        raise ZeroDivisionError

    agents = {name: speaker(name, penalty=broken if name == agent else None) for name in "abc"}
    llm = FakeLLM(delay=lambda request: 1.0 + number(str(request.key)) % 5)
    forest = forest_of(Script(chain, agents), llm)
    with pytest.raises(Exception, match=f"penalty of agent '{agent}'"):
        await make_strategy(strategy, 4, list("abc")).sample(forest)
    await forest.close()
    for _ in range(5):
        await asyncio.sleep(0)
    generated = len(llm.log)
    await asyncio.sleep(100)
    assert len(llm.log) == generated


async def test_close_cancels_generations_and_tools_that_still_run():
    async def both(task, ctx):
        await asyncio.gather(ctx.call("a"), ctx.tool("search", queries=[]))

    tool = Flaky("hang")
    forest = forest_of(both, FakeLLM(delay=lambda request: 1000.0), tools={"search": tool})
    session = asyncio.ensure_future(walk(forest))
    await asyncio.sleep(1)
    await forest.close()
    with pytest.raises(asyncio.CancelledError):
        await session
    assert now() == 1 and len(tool.attempts) == 1


async def test_a_failed_generation_is_recorded_once_for_all_that_share_it():
    forest = forest_of(chain, FakeLLM(lambda request: RuntimeError("gone")))
    trajectories = await asyncio.gather(*[walk(forest, Stream("0")) for _ in range(3)])
    assert [t.status for t in trajectories] == [Status.ENGINE_ERROR] * 3
    assert len(forest.llm.log) == 1 and len({id(t.calls[0]) for t in trajectories}) == 1


def test_tokens_and_text_of_a_call_are_those_of_the_engine():
    generation = Generation([104, 105], [-0.1, -0.2], "completed", 3, 4)
    call = run(walk(forest_of(chain, FakeLLM(lambda request: generation)))).calls[0]
    assert call.text == "hi" and call.generation is generation
    assert bytes(call.prompt_ids).decode() == call.messages[-1]["content"] == "a {'said': 'q'}"
