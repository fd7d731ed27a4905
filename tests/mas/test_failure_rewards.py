"""`mas.failure`: a trajectory that could not finish is left out, or trains with a reward of its own."""

from __future__ import annotations

import pytest

from tests.helpers import FakeLLM, Script, forest_of, run, speaker
from verl_ext.mas.agent import Unparsable
from verl_ext.mas.credit import assign_credit
from verl_ext.mas.types import Generation
from verl_ext.sampling import make_strategy
from verl_ext.trainer.rollout.forest_to_rows import training_rows

QUESTION = {"uid": "u", "index": 0, "global_steps": 1}


def needs_a_digit(text: str, **_) -> str:
    if not text.isdigit():
        raise Unparsable("no digit")
    return text


def never(text: str, **_) -> str:
    raise Unparsable("cut", "fallback")


async def broken_tool() -> str:
    raise OSError("gone")


async def loops(task, ctx):
    said = await ctx.call("a", said="q")
    while said.startswith("x"):
        said = await ctx.call("b", said="again")
    return said


async def two(task, ctx):
    said = await ctx.call("a", said="q")
    return await ctx.call("b", said=said * (40 if said.startswith("x") else 1))


async def tools(task, ctx):
    said = await ctx.call("a", said="q")
    return await ctx.tool("broken") if said.startswith("x") else said


# Status -> (system, limits): the second of four trajectories ends so, because its first output is "x".
FAILING = {
    "call_limit": (loops, {"max_calls": 3}),
    "prompt_too_long": (two, {"max_prompt_tokens": 40}),
    "timeout": (two, {"call_timeout": 5.0}),
    "tool_error": (tools, {"tool_retries": 0}),
    "unparsable": (two, {}),
    "truncated": (two, {}),
}


def sampled(status: str, **rewards: float):
    """The rows of a question, sampled four times, of which the second trajectory fails with this status."""
    system, limits = FAILING[status]
    agents = {"a": speaker("a"), "b": speaker("b")}
    if status == "unparsable":
        agents["a"] = speaker("a", parse=needs_a_digit)
    if status in ("unparsable", "truncated"):
        limits = limits | {"max_prompt_tokens": 1000}

    def answer(request):
        second = "*1" in request.key
        if status == "truncated" and second and request.agent == "a":
            return Generation(list(b"x"), [-0.5], stop_reason="length")
        return ("x" if second else "1") if request.agent == "a" or system is loops else "end"

    def delay(request):
        return 9.0 if status == "timeout" and "*1" in request.key and request.agent == "b" else 0.0

    async def scenario():
        workflow = Script(system, agents, lambda result: 1.0)
        forest = forest_of(workflow, FakeLLM(answer, delay), limits=limits, failure_rewards=rewards)
        forest.tools = {"broken": broken_tool}
        samples = await make_strategy("fof", 4, ["a", "b"]).sample(forest)
        assign_credit(forest.trajectories)
        return forest, training_rows(forest, samples, QUESTION)

    return run(scenario())


@pytest.mark.parametrize("status", FAILING)
def test_what_led_to_a_failure_trains_with_its_reward(status):
    forest, rows = sampled(status, **{status: -0.25})
    (failed,) = (number for number, trajectory in enumerate(forest.trajectories) if not trajectory.ok)
    assert forest.trajectories[failed].status == status and forest.trajectories[failed].reward == -0.25
    first = [row for row in rows if row.agent == "a" and row.turn == 0]
    assert len(first) == 4 and len({row.group for row in first}) == 1, "its output is compared with the others"
    assert {row.reward for row in first if row.trajectory == failed} == {-0.25}
    assert {row.reward for row in rows if row.trajectory != failed} == {1.0}
    assert all(row.failed is (row.trajectory == failed) for row in rows)
    if status == "call_limit":
        assert len([row for row in rows if row.failed]) == 3, "each call of the loop"


@pytest.mark.parametrize("status", FAILING)
def test_without_a_reward_it_is_left_out(status):
    forest, rows = sampled(status)
    if status == "truncated":  # the output is used as it stands
        assert all(trajectory.ok for trajectory in forest.trajectories) and len(rows) == 8
        return
    (failed,) = (number for number, trajectory in enumerate(forest.trajectories) if not trajectory.scored)
    assert not any(row.trajectory == failed for row in rows) and {row.reward for row in rows} == {1.0}


def test_a_cut_off_output_that_cannot_be_read_counts_as_cut_off():
    async def scenario():
        agents = {"a": speaker("a", parse=never)}
        cut = FakeLLM(lambda _: Generation(list(b"x"), [-0.5], stop_reason="length"))
        forest = forest_of(Script(lambda task, ctx: ctx.call("a", said="q"), agents), cut)
        forest.failure_rewards = {"truncated": -1.0}
        await make_strategy("fof", 1, ["a"]).sample(forest)
        return forest.trajectories

    (trajectory,) = run(scenario())
    assert (trajectory.status, trajectory.reward) == ("truncated", -1.0)


def test_validation_gives_failures_no_reward():
    async def scenario():
        forest = forest_of(Script(loops, "ab"), FakeLLM(lambda _: "x"), limits={"max_calls": 3}, greedy=True)
        forest.failure_rewards = {"call_limit": 0.0}
        await make_strategy("fof", 1, ["a", "b"]).sample(forest)
        return forest.trajectories

    assert not any(trajectory.scored for trajectory in run(scenario()))
