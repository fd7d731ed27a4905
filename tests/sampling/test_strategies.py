"""Sampling strategies: what they cost, what they keep, and in which groups."""

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import FakeLLM, Script, chain, forest_of, now, run, speaker
from tests.mas.programs import number, short_programs, workflow_of
from verl_ext.mas import CallFailed
from verl_ext.sampling import STRATEGIES, make_strategy
from verl_ext.sampling.base import BATCH, SHUFFLED, formula_calls, one_group

NAMES = list("abc")
ALWAYS = {"a": [1, 0, 0], "b": [0, 1, 0], "c": [0, 0, 1]}


def sample(strategy, system=chain, group_size=4, agents=NAMES, llm=None, seed=0, **options):
    """Sample one question; returns (forest, samples, formula, seconds)."""

    async def scenario():
        engine = llm or FakeLLM(delay=lambda request: 1.0)
        workflow = system if isinstance(system, Script) else Script(system, {name: speaker(name) for name in agents})
        forest = forest_of(workflow, engine, seed=seed)
        samples = await make_strategy(strategy, group_size, list(agents), **options).sample(forest)
        keys = [request.key for request in engine.log]
        assert len(set(keys)) == len(keys) == forest.cost.agent_calls, "something was generated twice"
        return forest, samples, formula_calls(forest.trajectories), now()

    return run(scenario())


def groups(samples):
    return Counter(sample.group for sample in samples)


# --- costs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_costs_of_a_chain_are_the_formulas(n, group):
    agents = list("abcde")[:n]
    expected = {
        "is": sum((i - 1) + group * (n - i + 1) for i in range(1, n + 1)),
        "fof": n * group,
        "nmc": n + sum((group - 1) * (n - i + 1) for i in range(1, n + 1)),
    }
    for name, calls in expected.items():
        forest, _, formula, seconds = sample(name, group_size=group, agents=agents)
        assert forest.cost.agent_calls == formula == calls, name
        assert seconds == n, "no barrier: forks run while their base does"
    for i in range(1, n + 1):
        p = [float(j == i) for j in range(1, n + 1)]
        forest, _, formula, _ = sample("rr", group_size=group, agents=agents, probabilities=p)
        assert forest.cost.agent_calls == formula == (i - 1) + group * (n - i + 1)


def test_the_numbers_of_the_paper_for_three_agents_and_groups_of_four():
    assert [sample(name)[0].cost.agent_calls for name in ("is", "fof", "nmc")] == [27, 12, 21]
    assert [sample("rr", probabilities=ALWAYS[a])[0].cost.agent_calls for a in NAMES] == [12, 9, 6]


# --- what is kept ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "trajectories", "prompts"),
    [
        ("fof", 4, [1, 4, 4]),  # homogeneous at the entry, heterogeneous below
        ("is", 12, [1, 1, 1]),
        ("nmc", 10, [1, 1, 1]),
    ],
)
def test_what_is_kept_and_how_many_prompts_a_group_has(strategy, trajectories, prompts):
    forest, samples, _, _ = sample(strategy)
    assert groups(samples) == {("a", "0"): 4, ("b", "0"): 4, ("c", "0"): 4}
    assert len(forest.trajectories) == trajectories
    members = [[s.call for s in samples if s.call.agent == agent] for agent in NAMES]
    assert [len({str(call.messages) for call in calls}) for calls in members] == prompts
    assert [len({call.text for call in calls}) for calls in members] == [4, 4, 4]


@pytest.mark.parametrize("regroup", ["by_agent", "shuffle"])
def test_round_robin_regroups_the_calls_before_the_fork(regroup):
    def single(agent, fork):
        return SHUFFLED if regroup == "shuffle" else (BATCH, agent, "0", f"fork@{fork}")

    def kept(agent):
        return groups(sample("rr", probabilities=ALWAYS[agent], regroup=regroup)[1])

    assert kept("a") == {("a", "0"): 4, ("b", "0"): 4, ("c", "0"): 4}
    assert kept("b") == {single("a", "b"): 1, ("b", "0"): 4, ("c", "0"): 4}
    before_c = Counter([single("a", "c"), single("b", "c")])
    assert kept("c") == before_c + Counter({("c", "0"): 4})


def test_round_robin_draws_follow_the_probabilities():
    async def costs(n, **options):
        strategy = make_strategy("rr", 2, NAMES, **options)
        forests = [forest_of(chain, seed=seed) for seed in range(n)]
        for forest in forests:
            await strategy.sample(forest)
        return Counter(forest.cost.agent_calls for forest in forests)

    for p, n, options in (((0.7, 0.1, 0.2), 400, {"probabilities": [0.7, 0.1, 0.2]}), ((1 / 3,) * 3, 200, {})):
        drawn = run(costs(n, **options))
        for calls, expected in zip((6, 5, 4), p, strict=True):
            assert abs(drawn[calls] / n - expected) < 4 * math.sqrt(expected * (1 - expected) / n)


# --- other systems --------------------------------------------------------------------------------------------------


async def early(task, ctx):
    """Ends before agents b and c."""
    return await ctx.call("a")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_system_that_ends_early_trains_what_there_is(strategy):
    options = {"probabilities": ALWAYS["c"]} if strategy == "rr" else {}
    forest, samples, formula, _ = sample(strategy, early, **options)
    expected = {"fof": (4, 4), "is": (6, 4), "nmc": (4, 4), "rr": (1, 1)}[strategy]
    assert (forest.cost.agent_calls, len(samples)) == expected and formula == expected[0]
    if strategy == "rr":
        assert samples[0].group == (BATCH, "a", "0", "fork@none")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_system_without_any_call_gives_no_samples(strategy):
    async def silent(task, ctx):
        return "nothing to say"

    assert sample(strategy, silent)[1:3] == ([], 0)


async def cyclic(task, ctx):
    """a, b, a, b: each agent twice."""
    said = task.question
    for agent in "abab":
        said = await ctx.call(agent, said=said)


TWICE = dict.fromkeys([("a", "0"), ("b", "0"), ("a", "1"), ("b", "1")], 4)


@pytest.mark.parametrize(
    ("strategy", "calls", "kept"),
    [
        ("fof", 16, TWICE),
        ("nmc", 4 + 3 * (4 + 3 + 2 + 1), TWICE),
        ("is", 16 + 13, {("a", "0"): 4, ("b", "0"): 4}),  # the first turn of each
    ],
)
def test_an_agent_that_comes_twice_forms_two_groups(strategy, calls, kept):
    forest, samples, formula, _ = sample(strategy, cyclic, agents="ab")
    assert groups(samples) == kept and forest.cost.agent_calls == formula == calls


@pytest.mark.parametrize(("strategy", "kept"), [("fof", 9), ("nmc", 11)])
def test_a_question_loses_its_failed_trajectories_only(strategy, kept):
    failed = []

    def say(request):
        """The second trajectory to reach c fails there."""
        if request.agent == "c":
            failed.append(request)
            return RuntimeError("gone") if len(failed) == 2 else f"{len(failed)}"
        return f"{request.key}"

    forest, samples, _, _ = sample(strategy, llm=FakeLLM(say))
    assert sum(not trajectory.ok for trajectory in forest.trajectories) == 1
    assert len(samples) == kept and all(sample.call.status.trainable for sample in samples)


def test_the_base_may_fail_while_its_forks_train():
    def say(request):
        return RuntimeError() if request.key[1:] == ("0", "b.0") else f"{request.key}"

    forest, samples, _, _ = sample("fof", llm=FakeLLM(say))
    assert [trajectory.ok for trajectory in forest.trajectories].count(False) == 1
    assert groups(samples) == {("a", "0"): 3, ("b", "0"): 3, ("c", "0"): 3}


def test_a_failed_call_that_the_workflow_survived_does_not_train():
    async def careful(task, ctx):
        try:
            await ctx.call("a")
        except CallFailed:
            pass
        return await ctx.call("b")

    _, samples, _, _ = sample("fof", careful, llm=FakeLLM(lambda r: RuntimeError() if r.agent == "a" else f"{r.key}"))
    assert groups(samples) == {("b", "0"): 4}


@settings(max_examples=100)
@given(short_programs, st.sampled_from(list(STRATEGIES)), st.integers(1, 4), st.integers(0, 99))
def test_no_workflow_makes_a_strategy_generate_twice_or_crash(program, strategy, group_size, seed):
    llm = FakeLLM(delay=lambda request: number(f"{seed}{request.key}") % 10)
    ticks = itertools.count()

    async def count(state):
        return f"tool{next(ticks)}"

    async def scenario():
        limits = {"max_prompt_tokens": 10**6, "max_calls": 10**6}
        forest = forest_of(workflow_of(program), llm, tools={"count": count}, seed=seed, limits=limits)
        samples = await make_strategy(strategy, group_size, NAMES).sample(forest)
        return forest, samples

    forest, samples = run(scenario())
    assert all(trajectory.ok for trajectory in forest.trajectories), [t.error for t in forest.trajectories]
    keys = [request.key for request in llm.log]
    assert len(set(keys)) == len(keys) == forest.cost.agent_calls
    assert len({id(sample.call) for sample in samples}) == len(samples), "a call trains once"
    for group, size in groups(samples).items():
        assert size <= group_size or group[0] == BATCH


# --- wrong options --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name,options,message",
    [
        ("foff", {}, "strategy='foff' is unknown; did you mean 'fof'\\? .allowed: fof, is, rr, nmc"),
        ("rr", {"probabilities": [0.5, 0.5]}, "2 values for 3 agents .a, b, c.: give one per agent"),
        ("rr", {"probabilities": [0.5, 0.4, 0.2]}, "sum to 1, but sum to 1.1"),
        ("rr", {"probabilities": [1.5, -0.5, 0.0]}, "must be >= 0"),
        ("rr", {"probabilities": [math.nan, 0.5, 0.5]}, "probabilities.0=nan must be finite"),
        ("fof", {"regroup": "shuffle"}, "unknown key mas.sampling.fof.regroup .allowed: none"),
        ("rr", {"regroups": "shuffle"}, "unknown key mas.sampling.rr.regroups; did you mean 'regroup'"),
        ("fof", {"group_size": 0}, "group_size=0 must be at least 1"),
        ("rr", {"regroup": "shufle"}, "regroup='shufle' is unknown; allowed: by_agent, shuffle"),
    ],
)
def test_wrong_options_say_what_is_allowed(name, options, message):
    with pytest.raises(ValueError, match=message):
        make_strategy(name, **{"group_size": 4, "agents": NAMES, **options})


@pytest.mark.parametrize(
    "name,options", [("fof", {}), ("is", {}), ("nmc", {}), ("rr", {}), ("rr", {"probabilities": ALWAYS["a"]})]
)
def test_a_system_in_which_no_agent_trains_can_be_validated(name, options):
    assert make_strategy(name, 4, [], **options).expected_calls(0) == 0


def test_the_ablation_puts_all_agents_of_a_question_in_one_group():
    _, samples, *_ = sample("fof")
    assert len(groups(samples)) == 3
    assert list(groups(one_group(samples)).values()) == [len(samples)]
