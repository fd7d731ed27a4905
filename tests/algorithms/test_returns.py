"""Eq. 6 of Puppeteer by hand and against a naive recursion."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import FakeLLM, Script, choice, forest_of, fork, speaker, walk
from verl_ext.algorithms.puppeteer import Returns
from verl_ext.mas import Agent
from verl_ext.mas.credit import assign_credit
from verl_ext.mas.types import Call, CallId, Status, Stream, Trajectory


def call(agent, turn=0, *parents, cost=1.0, decides=False, stream="0", scope=()):
    made = Call(CallId(scope, agent, turn), Stream(stream), [], parents=parents, decides=decides, cost=cost)
    made.depth = 1 + max((parent.depth for parent in parents), default=-1)
    return made


def trajectory(reward, *calls):
    ordered = sorted(calls, key=lambda call: (call.depth, call.id))
    return Trajectory(Stream("0"), ordered, (ordered[-1],), reward=reward)


def chain(costs):
    """Decision, work, decision, work, …: a decision costs 1, work what is given (None: no work)."""
    calls, before = [], ()
    for turn, cost in enumerate(costs):
        before = (call("boss", turn, *before, decides=True),)
        calls.append(before[0])
        if cost is not None:
            before = (call("worker", turn, *before, cost=cost),)
            calls.append(before[0])
    return calls


def test_three_steps_by_hand():
    """λ 0.5, γ 0.9, φ 4, F in tens: C_1 = 1.1 log 1.25, C_2 = 0.3 log 1.5, C_3 = 0.1 log 1.75."""
    rule = Returns(price=0.5, discount=0.9, steps=4, unit=10.0)
    calls = chain([10.0, 2.0, None])
    found = rule.of_trajectory(trajectory(1.0, *calls))
    third = 1.0 - 0.5 * 0.1 * math.log(1.75)
    second = 0.9 * third - 0.5 * 0.3 * math.log(1.5)
    first = 0.9 * second - 0.5 * 1.1 * math.log(1.25)
    assert [found[c] for c in calls if c.decides] == pytest.approx([first, second, third])
    assert set(found) == {c for c in calls if c.decides}


def test_without_a_price_and_a_discount_all_decisions_get_the_reward():
    found = Returns(price=0, discount=1).of_trajectory(trajectory(0.7, *chain([3, 4, 5])))
    assert set(found.values()) == {0.7}


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=6),
    st.floats(-1, 1),
    st.floats(0, 2),
    st.floats(0, 1),
    st.integers(1, 9),
)
def test_against_the_recursion_as_the_paper_writes_it(costs, reward, price, discount, steps):
    def naive(t):
        c = (1 + costs[t - 1]) / 7.0 * math.log(1 + t / steps)
        return reward - price * c if t == len(costs) else discount * naive(t + 1) - price * c

    calls = chain(costs)
    found = Returns(price=price, discount=discount, steps=steps, unit=7.0).of_trajectory(trajectory(reward, *calls))
    assert [found[c] for c in calls if c.decides] == pytest.approx([naive(t) for t in range(1, len(costs) + 1)])


def test_r_of_the_trajectory_is_eq_5_and_how_it_differs_from_reward_to_go():
    """Exact expectations in float64 over two decisions among three, against Eq. 5 as the paper writes it."""
    price, discount = 0.3, 0.8
    logits = (
        torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3).requires_grad_()
    )  # S_1, and S_2 after each a_1
    log_pi, reward = logits.log_softmax(-1), torch.linspace(0, 1, 9, dtype=torch.float64).reshape(3, 3)
    paper, by_trajectory, by_step, scaled = (torch.zeros((), dtype=torch.float64) for _ in range(4))
    for a, b in itertools.product(range(3), range(3)):
        chance = (log_pi[0, a] + log_pi[1 + a, b]).exp().detach()
        costs = [(1 + 2.0 * a) / 7 * math.log(1 + 1 / 2), (1 + 1.0 * b) / 7 * math.log(1 + 2 / 2)]
        r = reward[a, b].item()
        total = discount * (r - price * costs[1]) - price * costs[0]
        paper = paper + chance * (log_pi[0, a] + log_pi[1 + a, b]) * total
        calls = chain([2.0 * a, 1.0 * b])
        decisions = [one for one in calls if one.decides]
        for weigh_by in ("trajectory", "step"):
            rule = Returns(price=price, discount=discount, steps=2, unit=7.0, weigh_by=weigh_by)
            returns = rule.of_trajectory(trajectory(r, *calls))
            first, second = (returns[one] for one in decisions)
            if weigh_by == "trajectory":
                by_trajectory = by_trajectory + chance * (log_pi[0, a] * first + log_pi[1 + a, b] * second)
            else:
                by_step = by_step + chance * (log_pi[0, a] * first + log_pi[1 + a, b] * second)
                scaled = scaled + chance * (log_pi[0, a] * first + log_pi[1 + a, b] * discount * second)
    expected, found, to_go, weighed = (
        torch.autograd.grad(one, logits, retain_graph=True)[0] for one in (paper, by_trajectory, by_step, scaled)
    )
    assert torch.allclose(found, expected, atol=1e-14)
    assert torch.allclose(weighed, expected, atol=1e-14), "the factor is γ^(t−1)"
    assert (to_go - expected).abs().max() > 1e-3, "without it the expectations differ"


def test_every_branch_has_the_return_of_its_own_first_decision():
    rule = Returns(price=1.0, discount=0.5, steps=1, unit=1.0, weigh_by="trajectory")
    left, right = (call("boss", 0, decides=True, cost=0.0, scope=(name,)) for name in "lr")
    later = call("boss", 1, left, decides=True, cost=1.0, scope=("l",))
    done = Trajectory(Stream("0"), [left, right, later], (later, right), reward=1.0)
    assert rule.of_trajectory(done) == pytest.approx(
        {left: 0.5 * (1 - math.log(3)), later: 0.5 * (1 - math.log(3)), right: 1.0}
    )


def test_branches_count_their_own_steps_and_a_decision_before_them_takes_their_mean():
    rule = Returns(price=1.0, discount=0.5, steps=1, unit=1.0)
    top = call("boss", 0, decides=True, cost=0.0)
    left = call("boss", 0, top, decides=True, cost=1.0, scope=("l",))
    right = call("boss", 0, top, decides=True, cost=2.0, scope=("r",))
    work = call("worker", 0, right, cost=1.0, scope=("r",))
    join = call("judge", 0, left, work, cost=4.0)  # belongs to one of them: the later by name
    found = rule.of_trajectory(trajectory(1.0, top, left, right, work, join))
    assert found[left] == pytest.approx(1 - math.log(3)) and found[right] == pytest.approx(1 - 7 * math.log(3))
    assert found[top] == pytest.approx(0.5 * (found[left] + found[right]) / 2)


def test_calls_before_the_first_decision_cost_nobody():
    early = call("planner", cost=100.0)
    first = call("boss", 0, early, decides=True, cost=0.0)
    assert Returns().of_trajectory(trajectory(1.0, early, first))[first] == 1.0


def test_a_decision_that_was_refused_is_no_step():
    rule = Returns(price=0.0, discount=0.5)
    first = call("boss", 0, decides=True)
    refused = call("boss", 1, first, decides=True)
    refused.status = Status.PROMPT_TOO_LONG
    assert rule.of_trajectory(trajectory(1.0, first, refused)) == {first: 1.0}


def test_a_decision_in_a_branch_that_died_gets_no_reward():
    rule = Returns(price=0.0, discount=0.5)
    top = call("boss", 0, decides=True)
    dead = call("boss", 0, top, decides=True, scope=("dead",))
    alive = call("boss", 0, top, decides=True, scope=("alive",))
    end = call("judge", 0, alive)
    found = trajectory(1.0, top, dead, alive, end)
    assign_credit([found], rules=[rule.apply])
    assert math.isnan(dead.reward) and (top.reward, alive.reward) == (0.5, 1.0)


def test_a_shared_decision_gets_the_mean_and_penalties_stay():
    rule = Returns(price=0.0, discount=0.5)
    top = call("boss", 0, decides=True)
    top.reward_specific = -0.25
    ends = [call("boss", 1, top, decides=True, stream=str(i)) for i in range(2)]
    work = call("worker", 0, ends[0])
    trajectories = [trajectory(1.0, top, ends[0], work), trajectory(0.0, top, ends[1])]
    assign_credit(trajectories, rules=[rule.apply])
    assert (ends[0].reward, ends[1].reward) == (1.0, 0.0)
    assert top.reward_shared == 0.25 and top.reward == 0.0
    assert work.reward == 1.0, "others are rewarded as ever"


async def test_from_a_workflow_and_its_fork():
    """The costs are those of the tokens that were generated."""
    agents = {
        "boss": Agent(lambda at: [{"role": "user", "content": f"{at}"}], choices=lambda at: ["go", "no"]),
        "worker": speaker("worker", cost=2.0),
    }

    async def system(task, ctx):
        for at in range(2):
            if await ctx.call("boss", at=at) == "no":
                break
            await ctx.call("worker", at=at)

    def random(request):
        return choice(request, request.sampling["seed"] % 2) or "four"

    forest = forest_of(Script(system, agents), FakeLLM(random), seed=3, sampling={"temperature": 1.0, "max_tokens": 9})
    base = await walk(forest)
    trajectories = [base, *[await fork(forest, base, base.calls[0].id, f"f{i}") for i in range(6)]]
    rule = Returns(price=1.0, discount=1.0, steps=2, unit=4.0)
    assign_credit(trajectories, rules=[rule.apply])
    seen = set()
    for one in trajectories:
        path = tuple(c.text for c in one.calls if c.decides)
        seen.add(path)
        costs = [(1 + 2.0 * 4) / 4 if text == "go" else 1 / 4 for text in path]
        for t, decision in enumerate(c for c in one.calls if c.decides):
            later = sum(cost * math.log1p((t + 1 + k) / 2) for k, cost in enumerate(costs[t:]))
            assert decision.reward == pytest.approx(1.0 - later)
    assert len(seen) > 1
