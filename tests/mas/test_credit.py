"""Eq. 4: hand-computed credit, and a naive recursion on random forests."""

import asyncio
import math
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import FakeLLM, Script, chain, forest_of, fork, run, speaker, walk
from tests.mas.programs import number, programs, workflow_of
from verl_ext.algorithms.joyagents import efficiency
from verl_ext.mas.credit import AGGREGATES, aggregate, assign_credit
from verl_ext.mas.types import Call, CallId, Status, Stream, Trajectory
from verl_ext.sampling import make_strategy


def call(agent, *parents, penalty=0.0, stream="0"):
    made = Call(CallId((), agent, 0), Stream(stream), [], parents=parents, reward_specific=penalty)
    made.depth = 1 + max((parent.depth for parent in parents), default=-1)
    return made


def trajectory(reward, *calls, sinks=None):
    return Trajectory(Stream("0"), list(calls), tuple(sinks or calls[-1:]), reward=reward)


def test_a_chain_hands_the_reward_back_and_adds_the_penalty():
    a = call("a", penalty=-0.5)
    b = call("b", a)
    assign_credit([trajectory(0.8, a, b)])
    assert (b.reward_shared, b.reward) == (0.8, 0.8)
    assert (a.reward_shared, a.reward) == (0.8, pytest.approx(0.3))


@pytest.mark.parametrize("name,expected", [("mean", 0.5), ("max", 1.0), ("min", 0.0)])
def test_a_shared_prefix_gets_the_aggregate_of_its_successors(name, expected):
    a = call("a")
    ends = [call("b", a, stream=f"{i}", penalty=-1.0) for i in range(4)]
    assign_credit([trajectory(r, a, b) for r, b in zip((0, 1, 1, 0), ends, strict=True)], name)
    assert [b.reward_shared for b in ends] == [0, 1, 1, 0]
    assert [b.reward for b in ends] == [-1, 0, 0, -1], "penalties are an agent's own"
    assert a.reward_shared == expected


def test_successors_count_once_however_many_trajectories_pass_through_them():
    """a -> b1 -> (c1: 1.0, c2: 0.0, c3: 0.0); a -> b2 -> c4: 0.9. Not the mean of the leaves (0.475)."""
    a = call("a")
    b1, b2 = call("b", a), call("b", a, stream="1")
    c = [call("c", b, stream=f"{i}") for i, b in enumerate((b1, b1, b1, b2))]
    assign_credit([trajectory(r, a, x.parents[0], x) for r, x in zip((1.0, 0.0, 0.0, 0.9), c, strict=True)])
    assert b1.reward_shared == pytest.approx(1 / 3) and b2.reward_shared == 0.9
    assert a.reward_shared == pytest.approx((1 / 3 + 0.9) / 2)


def test_branches_that_join_and_branches_that_stay_open():
    a = call("a")
    b, c = call("b", a), call("c", a)
    d = call("d", b)
    assign_credit([trajectory(0.6, a, b, c, d, sinks=(c, d))])
    assert [x.reward_shared for x in (a, b, c, d)] == [0.6] * 4
    # c also ends a second trajectory, and has a successor in a third.
    e = call("e", c)
    assign_credit(
        [
            trajectory(0.6, a, b, c, d, sinks=(c, d)),
            trajectory(0.0, a, c),
            trajectory(0.9, a, c, e),
        ]
    )
    assert c.reward_shared == pytest.approx((0.6 + 0.0 + 0.9) / 3)
    assert a.reward_shared == pytest.approx((0.6 + 0.5) / 2)


def test_failed_trajectories_give_no_credit_and_get_none():
    from verl_ext.mas import Status

    a = call("a")
    b, lost = call("b", a), call("b", a, stream="1")
    bad = trajectory(math.nan, a, lost)
    bad.status = Status.TIMEOUT
    assign_credit([trajectory(0.5, a, b), bad])
    assert a.reward_shared == 0.5
    assert math.isnan(lost.reward) and math.isnan(lost.reward_shared)


def test_without_propagation_only_the_ends_are_rewarded():
    a = call("a", penalty=-0.25)
    b = call("b", a)
    assign_credit([trajectory(1.0, a, b)], propagate=False)
    assert (a.reward_shared, a.reward, b.reward) == (0.0, -0.25, 1.0)


@pytest.mark.parametrize("name,expected", [("mean", 0.7), ("max", 0.8), ("min", 0.6)])
def test_calls_that_lead_to_no_end_get_no_reward_and_give_none(name, expected):
    a = call("a", penalty=-0.5)
    joined = [call("b", a, stream=f"{i}") for i in range(2)]
    lost = call("c", a)
    later = call("d", lost)
    made = [trajectory(r, a, b, lost, later, sinks=(b,)) for r, b in zip((0.6, 0.8), joined, strict=True)]
    assign_credit(made, name)
    assert a.reward_shared == pytest.approx(expected)
    assert all(math.isnan(x.reward_shared) and math.isnan(x.reward) and not x.credited for x in (lost, later))
    assert a.credited and joined[0].credited
    assign_credit(made, name, propagate=False)
    assert [x.reward for x in (a, lost, later)] == [-0.5, 0.0, 0.0], "the ablation rewards the ends alone"
    # Another trajectory that goes on from such a call makes it count.
    assign_credit([*made, trajectory(0.2, a, lost, sinks=(lost,))], name)
    assert lost.reward == 0.2 and not later.credited


def test_unknown_aggregate_and_nothing_to_credit():
    with pytest.raises(ValueError, match="'median' is unknown; allowed: mean, max, min"):
        aggregate("median")
    assign_credit([])


def naive(trajectories, operator, propagate):
    """Eq. 4 by recursion on the definition."""
    finished = [t for t in trajectories if t.ok]
    calls = {c for t in finished for c in t.calls}

    def shared(c):
        received = [t.reward for t in finished if c in t.sinks]
        if propagate:
            below = [shared(s) for s in calls if c in s.parents]
            received += [reward for reward in below if not math.isnan(reward)]
            return operator(received) if received else math.nan
        return operator(received) if received else 0.0

    return {c: shared(c) for c in calls}


@settings(max_examples=120)
@given(programs, st.integers(0, 10**6), st.sampled_from(list(AGGREGATES)), st.booleans())
def test_random_forests_against_the_recursion(program, seed, name, propagate):
    async def scenario():
        agents = {agent: speaker(agent, penalty=lambda text, *_, **__: (-number(text) % 3 / 4, {})) for agent in "abc"}
        workflow = workflow_of(program)
        workflow.agents, workflow._reward = agents, lambda result: number(f"{seed}{result}") % 11 / 10

        def say(request):
            return RuntimeError() if number(f"{seed}{request.key}") % 9 == 0 else f"{len(faulty.log)}"

        faulty = FakeLLM(say)

        async def count(state):
            return state

        forest = forest_of(workflow, faulty, tools={"count": count})
        forest.trajectories = [await walk(forest)]
        for i in range(4):
            base = forest.trajectories[number(f"{seed}/{i}") % len(forest.trajectories)]
            if base.calls:
                point = base.calls[number(f"{seed}//{i}") % len(base.calls)].id
                forest.trajectories.append(await fork(forest, base, point, f"{i}"))
        await forest.close()  # branches that a failed sibling left behind
        await asyncio.sleep(1)
        return forest.trajectories

    trajectories = run(scenario())
    assign_credit(trajectories, name, propagate)
    operator = {"mean": fmean, "max": max, "min": min}[name]
    for made, expected in naive(trajectories, operator, propagate).items():
        assert made.reward_shared == pytest.approx(expected, abs=1e-12, nan_ok=True)
        assert made.reward == pytest.approx(made.reward_shared + made.reward_specific, nan_ok=True)


@pytest.mark.parametrize("strategy", ["fof", "is", "nmc", "rr"])
def test_credit_does_not_depend_on_the_order_of_arrival(strategy):
    def credit(delays):
        async def scenario():
            llm = FakeLLM(lambda r: f"{r.sampling['seed']}", lambda r: number(f"{delays}{r.key}") % 7)
            forest = forest_of(Script(chain, reward=lambda result: number(result) % 1000 / 997), llm, seed=3)
            await make_strategy(strategy, 4, list("abc")).sample(forest)
            await asyncio.sleep(0)
            assign_credit(forest.trajectories)
            return {(c.stream.path, c.id): c.reward for t in forest.trajectories for c in t.calls}

        return run(scenario())

    assert credit(1) == credit(2)


def nmc_forest():
    """a -> b, base reward 1; a fork at a (reward 0), one at b (reward 0)."""
    a = call("a", penalty=-0.5)
    b = call("b", a)
    other_a, other_b = call("a", stream="fork a"), None
    last = call("b", other_a, stream="fork a")
    other_b = call("b", a, stream="fork b")
    base = trajectory(1.0, a, b)
    root = base.stream
    forks = [Trajectory(Stream("fork a", root), [other_a, last], (last,), reward=0.0)]
    forks.append(Trajectory(Stream("fork b", root), [a, other_b], (other_b,), reward=0.0))
    return base, forks, (a, b, other_a, last, other_b)


def test_own_is_the_reward_of_the_trajectory_in_which_a_call_was_sampled():
    """JoyAgents-R1's r_j. With the mean, the base's a would get (1 + 0) / 2 because b was forked after it."""
    base, forks, (a, b, other_a, last, other_b) = nmc_forest()
    assign_credit([*forks, base])
    assert a.reward_shared == 0.5
    assign_credit([*forks, base], "own")
    assert [c.reward_shared for c in (a, b, other_a, last, other_b)] == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert a.reward == 0.5 and b.reward == 1.0


def test_efficiency_by_hand():
    """R_E = (k − j)/k with k = 2: 1/2 for the first call, 0 for the last; weights scale it."""
    base, forks, (a, b, other_a, last, other_b) = nmc_forest()
    assign_credit([base, *forks], "own", rules=[efficiency(1.0)])
    assert [c.reward for c in (a, b, other_a, last, other_b)] == [1.0 - 0.5 - 0.5, 1.0, -0.5, 0.0, 0.0]
    assign_credit([base, *forks], "own", rules=[efficiency(0.5)])
    assert a.reward == 1.0 - 0.5 - 0.25 and a.reward_shared == 1.0
    assign_credit([base, *forks], rules=[efficiency(1.0)])
    assert a.reward == 0.5 - 0.5 - 0.5, "Eq. 4's mean may be combined with it"


def test_own_where_the_trajectory_has_failed_is_that_of_the_first_that_has_the_call():
    base, forks, (a, b, *_) = nmc_forest()
    base.status, base.reward = Status.WORKFLOW_ERROR, math.nan
    assign_credit([base, *forks], "own", rules=[efficiency(1.0)])
    assert a.reward_shared == 0.0 and a.reward == 0.0 - 0.5 - 0.5 and math.isnan(b.reward)
    assert aggregate("own") and pytest.raises(ValueError, aggregate, "ours")


def test_the_mean_of_equal_rewards_is_that_reward():
    """fmean([0.2] * 3) is not: under node-wise Monte Carlo a node without variance would seem to have some."""
    assert aggregate("mean")([0.2] * 3) == 0.2
