"""The bench's long tail: every trajectory ends with an output of a drawn length. Rewards are counted by the clock."""

from __future__ import annotations

from tests.bench.asynchronous import LongTail, rewards_in_time
from tests.helpers import FakeLLM, forest_of, run, walk
from verl_ext.mas import Task


async def no_documents(queries):
    return []


def test_a_writer_that_does_not_train_writes_a_drawn_length_after_the_answer():
    llm = FakeLLM()
    forest = forest_of(LongTail(prompts="tiny"), llm, tools={"search": no_documents})
    forest.task = Task("q", ground_truth={"target": ["an answer"]})
    calls = run(walk(forest)).calls
    assert [(call.agent, call.trained) for call in calls] == [("rewriter", True), ("answerer", True), ("writer", False)]
    sampling = llm.log[-1].sampling
    assert sampling["ignore_eos"] and sampling["max_tokens"] in range(8, 257, 8)


def test_rewards_are_told_by_minutes_and_by_the_hour():
    rewards = (0.2, 0.4, 0.6, 0.8)
    found = [{"timing_s/step": 45.0, "system/reward": one, "sampling/trajectories": 32} for one in rewards]
    # Steps end after 0.75, 1.5, 2.25 and 3 minutes: 64 rewards in a twentieth of an hour, 0.6 in the last three steps.
    assert rewards_in_time(found).startswith(
        "reward by minutes: 0.300 from 0, 0.700 from 2; 0.5 reached after 3.0 minutes; 1280 rewards an hour"
    )
