"""Recalling and remembering inside workflows: one state of the memory for all trajectories of a question."""

from __future__ import annotations

import asyncio
import importlib
import re
import threading
from functools import partial
from pathlib import Path

from tests.helpers import FakeLLM, Script, forest_of, run, speaker
from verl_ext.mas import Task
from verl_ext.mas.credit import assign_credit
from verl_ext.memory import Episode, MemoryStore, Rules, Use
from verl_ext.observe.question_stats import question_stats
from verl_ext.sampling import make_strategy
from verl_ext.sampling.base import run_once


def store_with(folder, *texts, agent="a"):
    """A memory that holds (query, output) pairs, inserted in step 1."""
    store = MemoryStore(folder, Rules(alpha=0.0))
    for number, (query, output) in enumerate(texts):
        store.apply(number + 1, rare_success(agent, query, output))
    return store


def rare_success(agent, query, output):
    """Five trajectories of which one is right: the only one above U."""
    uses = (Use(agent, query, ("tool",), output),)
    return [Episode("q", str(i), float(i == 0), 1.0, uses if i == 0 else ()) for i in range(5)]


async def ask(task, ctx):
    memories = await ctx.recall("a", task.question)
    said = await ctx.call("a", seen=[memory.output for memory in memories])
    ctx.remember("a", task.question, said, ["x"], memories)
    again = await ctx.call("b", said=said)
    ctx.remember("b", said, again)
    return again


def test_without_a_memory_nothing_is_recalled_and_remembering_does_no_harm():
    forest = forest_of(Script(ask, "ab"), FakeLLM())
    trajectory = run(run_once(forest))
    assert trajectory.ok and [use.agent for use in trajectory.uses.values()] == ["a", "b"]
    assert trajectory.calls[0].messages[0]["content"] == "a {'seen': []}"
    assert question_stats(forest, []).episodes == []


def test_all_trajectories_of_a_question_recall_the_same_and_ask_the_memory_once(tmp_path):
    asked = []
    with store_with(tmp_path, ("what is up", "the sky")) as store:
        view = store.view()

        def memory(agent, query):
            asked.append((agent, query))
            return view.recall(agent, query, k=3)

        forest = forest_of(Script(ask, "ab"), FakeLLM())
        forest.memory, forest.task = memory, Task("what is up?", data_source="d", index=7)
        run(make_strategy("nmc", 5, ["a", "b"]).sample(forest))
    assert asked == [("a", "what is up?")] and len(forest.trajectories) == 9
    assert {call.messages[0]["content"] for t in forest.trajectories for call in t.calls if call.agent == "a"} == {
        "a {'seen': ['the sky']}"
    }
    for trajectory in forest.trajectories:
        first, second = (trajectory.uses[place] for place in sorted(trajectory.uses))
        assert (first.agent, first.query, first.plan, first.recalled) == ("a", "what is up?", ("x",), (1,))
        assert first.output == trajectory.calls[0].text, "a fork hands over what it has done itself"
        assert (second.agent, second.query, second.output) == ("b", first.output, trajectory.result)


def test_a_memory_and_a_reward_that_take_long_hold_nothing_up():
    """Each waits for the other: on the event loop's own thread neither would end."""
    asked, meanwhile = threading.Event(), threading.Event()

    class Slow(Script):
        async def reward(self, task, result):
            assert await asyncio.to_thread(meanwhile.wait, 60)
            return 0.5, {"slow": 1.0}

    def memory(agent, query):
        asked.set()
        assert meanwhile.wait(60)
        return []

    async def other():
        assert await asyncio.to_thread(asked.wait, 60)
        meanwhile.set()

    async def both():
        forest = forest_of(Slow(ask, "ab"), FakeLLM())
        forest.memory = memory
        trajectory, _ = await asyncio.gather(run_once(forest), other())
        return trajectory

    trajectory = run(both())
    assert (trajectory.ok, trajectory.reward, trajectory.metrics) == (True, 0.5, {"slow": 1.0})


def test_what_a_step_finds_out_is_seen_by_questions_that_begin_after_it_and_by_no_other(tmp_path):
    """Leakage: a trajectory must not read what its own group, or its own step, has just learned."""

    def forest_at(view):
        forest = forest_of(Script(ask, "ab"), FakeLLM())
        forest.memory, forest.task = partial(view.recall, k=3), Task("what is up?", data_source="d", index=7)
        return forest

    with store_with(tmp_path, ("what is up", "the sky")) as store:
        before = forest_at(store.view())
        run(run_once(before, "0"))
        store.apply(2, rare_success("a", "what is up?", "leaked"))
        run(run_once(before, "1"))  # of the same group, after the memory has learned
        late = forest_at(before.memory.func.__self__)  # of the same step
        run(run_once(late, "0"))
        after = forest_at(store.view())
        run(run_once(after, "0"))
    for forest in (before, late):
        assert all("leaked" not in t.calls[0].messages[0]["content"] for t in forest.trajectories)
    assert "leaked" in after.trajectories[0].calls[0].messages[0]["content"]


def test_uses_of_concurrent_branches_stand_in_the_order_of_the_workflow():
    async def part(ctx, delay):
        said = await ctx.call("a", delay=delay)
        ctx.remember("a", f"{delay}", said)
        ctx.remember("a", f"{delay} again", said)

    async def both(task, ctx):
        await asyncio.gather(*[ctx.branch(name, part, delay) for name, delay in (("one", 2), ("two", 1))])
        return ""

    llm = FakeLLM(delay=lambda request: float(request.prompt[-2]))
    trajectory = run(run_once(forest_of(Script(both, "a"), llm)))
    queries = [trajectory.uses[place].query for place in sorted(trajectory.uses)]
    assert queries == ["2", "2 again", "1", "1 again"]


def test_episodes_carry_accuracy_and_format_apart_and_leave_failures_out(tmp_path):
    def formed(text, value, parsable, **inputs):
        return float(text == "1"), {}

    agents = {"a": speaker("a", penalty=formed), "b": speaker("b", trained=False)}
    with store_with(tmp_path, ("what is up", "the sky")) as store:
        forest = forest_of(Script(ask, agents, reward=lambda result: 0.5), FakeLLM())
        forest.memory, forest.task, forest.name = (
            partial(store.view().recall, k=1),
            Task("what is up?", data_source="d", index=7),
            "w-3",
        )
        for name in "01":
            run(run_once(forest, name))
        failed = forest.trajectories[1]
        failed.status = type(failed.status).TIMEOUT
        assign_credit(forest.trajectories)
        (episode,) = question_stats(forest, []).episodes
    assert (episode.question, episode.name) == ("d/000000000007/w-3", "0")
    assert (episode.accuracy, episode.format, episode.reward) == (0.5, 1.0, 1.5)
    assert [use.agent for use in episode.uses] == ["a", "b"]


def test_the_documentation_s_workflow_recalls_and_remembers(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "memory.md").read_text()
    _, example = re.findall(r"```python\n(.+?)```", page, re.DOTALL)
    (tmp_path / "of_the_page.py").write_text(example)
    monkeypatch.syspath_prepend(str(tmp_path))
    calculator = importlib.import_module("of_the_page").Calculator
    with store_with(tmp_path, ("2 + 3", "5"), agent="math") as store:
        forest = forest_of(calculator(), FakeLLM(lambda request: "5"))
        forest.memory, forest.task = partial(store.view().recall, k=1), Task("2 + 3", "5", "d", 7)
        trajectory = run(run_once(forest))
    assert trajectory.reward == 1.0 and '"Answer": "5"' in trajectory.calls[0].messages[0]["content"]
    assert [use.recalled for use in trajectory.uses.values()] == [(1,)]
