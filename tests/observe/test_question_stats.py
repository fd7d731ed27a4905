"""What is kept of a question: similarity by hand numbers, and statistics that add up."""

import asyncio
import math
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import FakeLLM, Script, chain, forest_of, run, speaker
from verl_ext.mas import CallFailed, Unparsable
from verl_ext.mas.credit import assign_credit
from verl_ext.mas.types import Generation
from verl_ext.observe.metrics import METRICS, group_metrics, reduce_stats
from verl_ext.observe.question_stats import QuestionStats, mean_pairwise_f1, question_stats
from verl_ext.sampling import make_strategy, run_once
from verl_ext.trainer.rollout.forest_to_rows import training_rows, validation_rows


@pytest.mark.parametrize(
    "texts,expected",
    [
        (["a b", "a b"], 1.0),
        (["a b", "c d"], 0.0),
        (["a b c", "a b d"], 2 / 3),  # 2·2 / (3 + 3)
        (["a a b", "a"], 0.5),  # 2·1 / (3 + 1)
        (["a a", "a a a"], 0.8),  # 2·2 / (2 + 3)
        (["Paris", "paris", "rome"], 1 / 3),  # 1, 0, 0
        (["", ""], 1.0),
        (["", "a"], 0.0),
    ],
)
def test_similarity_by_hand(texts, expected):
    assert mean_pairwise_f1(texts) == pytest.approx(expected)


@given(st.lists(st.text("abc ", max_size=8), min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_similarity_is_symmetric_and_bounded(texts, random):
    value = mean_pairwise_f1(texts)
    random.shuffle(texts)
    assert 0.0 <= value <= 1.0 and mean_pairwise_f1(texts) == pytest.approx(value)
    assert mean_pairwise_f1([texts[0]] * 3) == 1.0


def parse(text, **_):
    if "odd" in text:
        raise Unparsable("odd", fallback="?")
    return text


def penalty(text, value, parsable, **_):
    return (0.0 if parsable else -0.5), {"words": float(len(text.split()))}


def sampled(strategy="fof", say=None, reward=lambda result: 0.25, system=chain, tools=None):
    """(forest, statistics) of one question, credited as the rollout worker does."""

    async def scenario():
        agents = {name: speaker(name, parse=parse, penalty=penalty) for name in "abc"}
        llm = FakeLLM(say or (lambda request: "two words"))
        forest = forest_of(Script(system, agents, reward), llm, tools=tools or {})
        samples = await make_strategy(strategy, 4, list("abc")).sample(forest)
        assign_credit(forest.trajectories)
        return forest, question_stats(forest, samples)

    return run(scenario())


@pytest.mark.parametrize("strategy,calls", [("fof", 12), ("is", 27), ("nmc", 21)])
def test_numbers_add_up(strategy, calls):
    forest, stats = sampled(strategy)
    metrics = reduce_stats([stats, stats])
    assert metrics["sampling/agent_calls"] == metrics["sampling/agent_calls_formula"] == 2 * calls
    assert sum(metrics[f"agents/{agent}/calls"] for agent in "abc") == 2 * calls
    tokens = sum(metrics[f"agents/{a}/calls"] * metrics[f"agents/{a}/output_tokens"] for a in "abc")
    assert tokens == metrics["sampling/generated_tokens"] == 2 * calls * len("two words")
    prompts = sum(len(request.prompt.encode()) for request in forest.llm.log)
    assert metrics["sampling/prompt_tokens"] == 2 * prompts
    assert metrics["sampling/trajectories"] == 2 * len(forest.trajectories)
    assert metrics["sampling/failed_trajectories"] == 0 and metrics["system/reward"] == 0.25
    for agent in "abc":
        assert metrics[f"agents/{agent}/reward"] == metrics[f"agents/{agent}/reward_shared"] == 0.25
        assert metrics[f"agents/{agent}/words"] == 2.0 and metrics[f"agents/{agent}/similarity"] == 1.0


def test_failures_are_counted_by_name_and_give_no_reward():
    said = []

    def say(request):
        said.append(request)
        if request.agent == "b":
            kind = [r for r in said if r.agent == "b"].index(request)
            return [RuntimeError("gone"), "odd", Generation(list(b"cut"), [0.0] * 3, "length"), "fine"][kind]
        return f"word{len(said)} same"

    _, stats = sampled(say=say)
    metrics = reduce_stats([stats])
    assert metrics["sampling/trajectories"] == 4 and metrics["sampling/failed/engine_error"] == 1
    assert metrics["agents/b/calls"] == 4 and metrics["agents/c/calls"] == 3
    assert metrics["agents/b/failed"] == metrics["agents/b/unparsable"] == metrics["agents/b/truncated"] == 0.25
    assert metrics["agents/b/output_tokens"] == pytest.approx((3 + 3 + 4) / 3), "of those that answered"
    assert metrics["agents/b/penalty"] == pytest.approx(-0.5 / 3)
    assert metrics["agents/b/reward"] == pytest.approx(0.25 - 0.5 / 3)
    assert metrics["agents/a/reward"] == 0.25 and len(stats.rewards) == 3
    failed = [call for call in stats.calls if call.status == "engine_error"]
    assert len(failed) == 1 and math.isnan(failed[0].reward) and math.isnan(failed[0].penalty)
    # a: all pairs share one of two words; only three of its four calls are in a group.
    assert stats.similarity["a"] == [pytest.approx(0.5)]


def test_max_tokens_count_whatever_the_parser_says_and_aborted_outputs_are_failures():
    said = []

    def say(request):
        said.append(request)
        kinds = ("odd", "length"), ("fine", "length"), ("fine", "completed"), ("fine", "aborted")
        text, reason = kinds[len(said) - 1]
        return Generation(list(text.encode()), [0.0] * len(text), reason)

    async def one(task, ctx):
        return await ctx.call("a")

    metrics = reduce_stats([sampled(say=say, system=one)[1]])
    assert metrics["agents/a/truncated"] == 0.5 and metrics["agents/a/unparsable"] == 0.25
    assert metrics["agents/a/failed"] == metrics["sampling/failed/engine_error"] / 4 == 0.25
    assert metrics["agents/a/penalty"] == pytest.approx(-0.5 / 3)
    assert metrics["agents/a/output_tokens"] == pytest.approx((3 + 4 + 4) / 3)


async def twice(child, agent):
    await child.call(agent)
    return await child.call(agent)


async def race(task, ctx):
    """The faster branch decides; the other one is cancelled in its second call."""
    branches = [asyncio.ensure_future(ctx.branch(agent, twice, agent)) for agent in "bc"]
    done, others = await asyncio.wait(branches, return_when=asyncio.FIRST_COMPLETED)
    for other in others:
        other.cancel()
    return done.pop().result()


async def survivor(task, ctx):
    """One branch fails, which the workflow is told when the other one has ended: what both have asked is its own."""
    try:
        await asyncio.gather(ctx.branch("b", lambda child: child.call("b")), ctx.branch("c", twice, "c"))
    except CallFailed:
        return await ctx.call("a")


@pytest.mark.parametrize("system,trained", [(race, {"b"}), (survivor, {"a", "c"})])
def test_calls_of_branches_that_never_joined_do_not_train(system, trained):
    def say(request):
        return RuntimeError("gone") if system is survivor and request.agent == "b" else "two words"

    async def scenario():
        agents = {name: speaker(name, penalty=penalty) for name in "abc"}
        llm = FakeLLM(say, lambda request: {"a": 1.0, "b": 4.0, "c": 5.0 if system is race else 3.0}[request.agent])
        forest = forest_of(Script(system, agents, lambda result: 0.5), llm)
        samples = await make_strategy("fof", 3, list("abc")).sample(forest)
        assign_credit(forest.trajectories)
        await forest.close()
        await asyncio.sleep(0)
        question = {"uid": "u", "index": 0, "global_steps": 1}
        rows = training_rows(forest, samples, question), validation_rows(forest, question)
        return forest, question_stats(forest, samples), rows

    forest, stats, (train, validate) = run(scenario())
    assert all(t.ok and any(call.agent == "c" for call in t.calls) for t in forest.trajectories)
    for rows in (train, validate):
        assert {row.agent for row in rows} == trained and {row.reward for row in rows} == {0.5}
    metrics = reduce_stats([stats])
    assert not any(math.isnan(value) for value in metrics.values())
    assert ("agents/c/reward" in metrics) == ("agents/c/similarity" in metrics) == ("c" in trained)
    assert metrics["agents/c/calls"] == (6 if "c" in trained else 3)


@pytest.mark.parametrize("regroup", ["by_agent", "shuffle"])
def test_batch_wide_groups_have_no_similarity(regroup):
    async def scenario():
        forest = forest_of(chain)
        strategy = make_strategy("rr", 4, list("abc"), probabilities=[0, 0, 1.0], regroup=regroup)
        samples = await strategy.sample(forest)
        assign_credit(forest.trajectories)
        return question_stats(forest, samples)

    assert set(run(scenario()).similarity) == {"c"}


def test_tools_in_the_statistics():
    async def down(**_):
        raise OSError("down")

    async def system(task, ctx):
        await ctx.tool("web")

    _, stats = sampled(system=system, tools={"web": down})
    metrics = reduce_stats([stats])
    assert (metrics["sampling/tool_calls"], metrics["sampling/tool_retries"]) == (3, 2)
    assert metrics["sampling/tool_failures"] == metrics["sampling/failed/tool_error"] == 1


def test_validation_and_nothing_at_all():
    async def scenario():
        forest = forest_of(chain)
        await asyncio.gather(*[run_once(forest, f"{i}") for i in range(2)])
        assign_credit(forest.trajectories)
        return question_stats(forest, [])

    metrics = reduce_stats([run(scenario())])
    assert metrics["sampling/agent_calls"] == 6 and "agents/a/similarity" not in metrics
    assert reduce_stats([])["sampling/trajectories"] == 0


def test_every_metric_is_in_the_table_and_travels_between_processes():
    _, stats = sampled("nmc")
    metrics = reduce_stats([pickle.loads(pickle.dumps(stats))])
    assert metrics == reduce_stats([stats])
    parts = [re.split("(<[a-z]+>)", name) for name in METRICS]
    patterns = ["".join("[^/]+" if p.startswith("<") else re.escape(p) for p in name) for name in parts]
    unknown = [name for name in metrics if not any(re.fullmatch(pattern, name) for pattern in patterns)]
    assert unknown == []


def test_infinite_quantities_of_both_signs_have_no_mean_and_stop_nothing():
    stats = QuestionStats(0, rewards=[1.0, 0.0], quantities=[{"gain": math.inf}, {"gain": -math.inf}])
    stats.cost = dict(vars(forest_of(chain).cost))
    metrics = reduce_stats([stats])
    assert math.isnan(metrics["system/gain"]) and metrics["system/reward"] == 0.5


def test_group_metrics_by_hand():
    tags = [
        {"group": group, "reward": reward}
        for group, reward in (("a", 1.0), ("a", 0.0), ("b", 0.5), ("b", 0.5), ("c", 1.0))
    ]
    assert group_metrics(tags) == {
        "groups/count": 3,
        "groups/size": pytest.approx(5 / 3),
        "groups/zero_variance": pytest.approx(1 / 3),
        "groups/single": pytest.approx(1 / 3),
    }
