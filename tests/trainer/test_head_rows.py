"""Policy heads in a system, and the rows of questions and trajectories in which no token trains."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.helpers import FakeLLM, Script, forest_of, fork, run, walk
from verl_ext.algorithms.puppeteer import Returns
from verl_ext.engine.fsdp.masked_logits import ALLOWED
from verl_ext.heads import PolicyHead, Weights
from verl_ext.mas import Agent, Task
from verl_ext.mas.credit import assign_credit
from verl_ext.mas.types import Completion, Generation
from verl_ext.memory import HashingSimilarity
from verl_ext.observe.question_stats import question_stats
from verl_ext.recipe.puppeteer import Puppeteer
from verl_ext.sampling import make_strategy
from verl_ext.trainer.rollout.forest_to_rows import training_rows, validation_rows

QUESTION = {"uid": "u", "index": 3, "global_steps": 1, "data_source": "s"}
RULE = Returns(price=0.1, discount=0.99, steps=4, unit=10.0)


def puppeteer(train_agents=False, matrix=None):
    system = Puppeteer(pool=["planning", "reasoning"], prompts="tiny", train_agents=train_agents, depth=3)
    head = PolicyHead(HashingSimilarity(16))
    head.weights = Weights(np.zeros((16, 16)) if matrix is None else matrix, 4)
    system.agents = {**system.agents, "orchestrator": system.agents["orchestrator"].changed(llm=head)}
    return system


async def sampled(system, seed=1, samples=4):
    """A question, sampled as a training step does, with credit; its forest and samples."""
    said = FakeLLM(lambda request: "FINAL ANSWER: 42" if request.agent == "reasoning" else "on and on")
    forest = forest_of(system, said, seed=seed)
    forest.sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_tokens": 50}
    forest.task = Task("7 * 6?", {"target": ["42"]}, "gsm8k")
    found = await make_strategy("fof", samples, system.trained_agents).sample(forest)
    forest.trajectories.sort(key=lambda trajectory: trajectory.stream.path)
    assign_credit(forest.trajectories, rules=[RULE.apply])
    return forest, found


def test_a_head_decides_for_the_workflow_and_costs_nothing():
    forest, samples = run(sampled(puppeteer(), samples=8))
    calls = [call for trajectory in forest.trajectories for call in trajectory.calls]
    made = [call for call in calls if call.decides]
    assert len(forest.trajectories) == 8 and all(trajectory.ok for trajectory in forest.trajectories)
    assert all(call.text in call.options and call.cost == call.generated_tokens == 0 for call in made)
    assert {call.text for call in made} == {"planning", "reasoning", "terminate"}
    for trajectory in forest.trajectories:
        spoken = [call for call in trajectory.calls if not call.decides]
        assert trajectory.metrics["tokens"] == sum(call.generated_tokens for call in spoken)
    assert {sample.call for sample in samples} == set(made), "what trains are decisions"
    stats = question_stats(forest, samples)
    assert len(stats.head_decisions) == len(made)
    for call, decision in zip([sample.call for sample in samples], stats.head_decisions, strict=True):
        assert decision.options[decision.chosen] == call.text and decision.reward == call.reward
        assert decision.state == call.messages[-1]["content"] and decision.state.startswith("who: 7 * 6?")
    same_place = {d.group for d in stats.head_decisions if d.state == "who: 7 * 6?"}
    assert len(same_place) == 1 and same_place.pop().endswith("/orchestrator/0")
    assert [path.surprise for path in stats.paths] == pytest.approx([math.log(3)] * 8)
    assert stats.cost["generated_tokens"] == sum(call.generated_tokens for call in calls if not call.decides)


def test_the_same_seed_decides_the_same_and_a_fork_replays():
    texts = [[c.text for t in run(sampled(puppeteer(), seed))[0].trajectories for c in t.calls] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]

    async def forked():
        forest, _ = await sampled(puppeteer(), samples=1)
        base = next(t for t in forest.trajectories)
        last = [call for call in base.calls if call.decides][-1]
        return base, await fork(forest, base, last.id), last

    base, other, last = run(forked())
    before = base.calls[: base.calls.index(last)]
    assert other.ok and other.calls[: len(before)] == before and other.calls[len(before)] is not last


def test_without_anything_else_to_train_a_question_has_an_idle_row():
    forest, samples = run(sampled(puppeteer()))
    (row,) = training_rows(forest, samples, QUESTION)
    key, fields, tag = row.key, row.fields, row.tag
    assert tag["idle"] and tag["calls"] == [] and tag["group"] == key and tag["seq_len"] == 2
    assert fields["prompts"].tolist() == fields["responses"].tolist() == [0]
    assert fields["rm_scores"].tolist() == pytest.approx([forest.trajectories[0].reward])
    assert tag["max_global_steps"] == 4 and not tag["decides"] and ALLOWED not in fields


def test_beside_puppets_that_train_only_their_rows_do():
    forest, samples = run(sampled(puppeteer(train_agents=True)))
    rows = training_rows(forest, samples, QUESTION)
    spoken = [sample.call for sample in samples if not sample.call.decides]
    assert len(rows) == len(spoken) > 0 and not any("idle" in row.tag for row in rows)
    assert {row.agent for row in rows} <= {"planning", "reasoning"}


async def test_in_validation_a_trajectory_in_which_nobody_spoke_has_an_idle_row():
    async def ends(task, ctx):
        return await ctx.call("who", state="now")

    head = PolicyHead(HashingSimilarity(16))
    head.weights = Weights(np.zeros((16, 16)))
    agent = Agent(lambda state: [{"role": "user", "content": state}], choices=lambda state: ["a", "b"], llm=head)

    forest = forest_of(Script(ends, {"who": agent}, lambda result: 0.5), FakeLLM())
    forest.sampling = {"temperature": 0.0, "max_tokens": 5}
    forest.trajectories.append(await walk(forest))
    assign_credit(forest.trajectories)
    (row,) = validation_rows(forest, QUESTION)
    fields, tag = row.fields, row.tag
    assert tag["idle"] and fields["rm_scores"].tolist() == [0.5]


async def test_in_validation_calls_of_an_endpoint_have_no_row():
    class Served(PolicyHead):
        async def complete(self, messages, prompt_ids, sampling, key):
            return Completion("hi", Generation([], []), 3, 1)

    async def two(task, ctx):
        await ctx.call("policy", said="q")
        return await ctx.call("served", said="r")

    agents = {
        "policy": Agent(lambda said: [{"role": "user", "content": said}]),
        "served": Agent(lambda said: [{"role": "user", "content": said}], trained=False, llm=Served(None)),
    }

    forest = forest_of(Script(two, agents, lambda result: 0.5), FakeLLM())
    forest.trajectories.append(await walk(forest))
    assign_credit(forest.trajectories)
    (row,) = validation_rows(forest, QUESTION)
    fields, tag = row.fields, row.tag
    assert tag["agent"] == "policy" and fields["rm_scores"].sum() == 0.5 and "idle" not in tag
