"""The whole system in the tiny shop world: played rightly it is right on every question, in the fewest rounds."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.helpers import walk
from tests.recipe.shop_player import Player, answer, call, play
from verl_ext.mas import Task
from verl_ext.mas.forest import Forest
from verl_ext.mas.limits import Limits
from verl_ext.mas.llm import TokenLLM
from verl_ext.memory import Memory
from verl_ext.recipe.joyagents import JoyAgents
from verl_ext.recipe.joyagents.workflow import SPECIALISTS
from verl_ext.sampling import make_strategy
from verl_ext.worlds import shop as tiny_shop

# Outputs that the questions of a kind take; a cooperation of two look-ups takes two more.
ROUNDS = {"math": 3, "qa": 5, "shop": 4, "function": 5, "cooperation": 6}


def tasks_of(split):
    rows = tiny_shop.data_set(60, 50, 4)[f"{split}.parquet"]
    return [
        Task(r["prompt"][0]["content"], r["reward_model"]["ground_truth"], r["data_source"], i)
        for i, r in enumerate(rows)
    ]


def forest_for(task: Task, llm: TokenLLM, tools, memory=None, **options) -> Forest:
    limits = Limits(max_prompt_tokens=100_000, tool_retries=0)
    options = {"prompts": "tiny", "remember": "answer", **options}
    forest = Forest(task, JoyAgents(**options), llm, tools, limits=limits, name=str(task.index), memory=memory)
    forest.sampling = {"max_tokens": 10_000}
    return forest


def playing(tasks, llm=None, memory=None, seed=4, **options):
    """One trajectory per task."""

    async def scene():
        tools, llm_ = tiny_shop.tools_of(tiny_shop.World(seed)), llm or Player()
        walks = [walk(forest_for(task, llm_, tools, memory, **options)) for task in tasks]
        done = await asyncio.gather(*walks)
        for tool in tools.values():
            await tool.close()
        return done

    return asyncio.run(scene())


@pytest.mark.parametrize("split", ["train", "val"])
def test_played_rightly_every_question_is_answered_rightly_in_the_fewest_rounds(split):
    tasks = tasks_of(split)
    seen = set()
    for task, trajectory in zip(tasks, playing(tasks), strict=True):
        assert trajectory.ok and trajectory.reward == 1.0, (task.question, trajectory.result)
        metrics = trajectory.metrics
        fewest = ROUNDS[task.data_source] + 3 * (task.question.count("shop:") == 2)
        assert metrics["rounds"] == fewest and metrics[f"accuracy_{task.data_source}"] == 1.0
        assert not metrics["broken"] + metrics["unanswered"] + metrics["tool_failures"]
        assert all(call.reward_specific == 1.0 for call in trajectory.calls if call.trained), "the format reward"
        seen.add(task.data_source)
    assert seen == set(tiny_shop.KINDS)


class Scripted(Player):
    """Plays rightly, but for the outputs that are given: agent -> its outputs in order; None: the right one."""

    def __init__(self, **outputs: list[str | None]):
        super().__init__()
        self._said = {agent: iter(said) for agent, said in outputs.items()}
        self.answer = self._answer

    def _answer(self, request):
        said = next(self._said.get(request.agent, iter(())), None)
        return play(request) if said is None else said


def one(task, **outputs):
    """(the trajectory of one task, prompts' chats by agent), with outputs that are not the right ones."""
    llm = Scripted(**outputs)
    (trajectory,) = playing([task], llm)
    return trajectory, {call.agent: call.messages for call in trajectory.calls}


def task_of(kind, nth=0):
    return [task for task in tasks_of("val") if task.data_source == kind][nth]


def test_a_closed_tool_refuses_and_the_right_one_is_still_there():
    task = task_of("function")
    kind, name, relation = task.question.split(":")
    world = tiny_shop.World(4)
    shut = [spec for spec in world.tools.tools if spec.description == f"{relation}:closed"]
    closed = next(spec.name for spec in shut if kind in spec.parameters["properties"])
    trajectory, chats = one(task, function_agent=[None, call("call", closed, **{kind: name})])
    assert [m["content"] for m in chats["function_agent"] if m["role"] == "tool"][1] == "error closed"
    # The player answers with the second result it sees; the master hands that on.
    assert trajectory.ok and trajectory.reward == 0.0 and trajectory.result.answer == "error closed"


def test_a_summary_without_passages_knows_nothing():
    trajectory, chats = one(task_of("qa"), question_agent=[call("sum", "tool_summary"), None, None])
    assert chats["summary"][0]["content"].endswith(" of: none")
    assert trajectory.reward == 0.0 and trajectory.result.answer == "nothing"


def test_the_wrong_specialist_costs_the_answer_and_an_unknown_one_is_no_failure():
    task = task_of("shop")
    trajectory, _ = one(task, master=[call("ask", "question_agent"), None])
    assert trajectory.ok and trajectory.reward == 0.0 and trajectory.metrics["specialists"] == 1.0
    trajectory, chats = one(task, master=[call("ask", "weather_agent"), None], shop_agent=[])
    assert trajectory.ok and chats["master"][2]["content"] == "error: there is no tool 'weather_agent'"


def test_detours_cost_rounds_and_nothing_else():
    task = task_of("shop")
    for name, expected in (("tool_retrievals", "shop:shop_agent"), ("tool_intention", task.question)):
        trajectory, chats = one(task, master=[call("find", name)])
        assert chats["master"][2] == {"role": "tool", "content": expected}
        # The player takes whatever it sees for the result.
        assert trajectory.metrics["rounds"] == 2.0
    trajectory, chats = one(task, shop_agent=[call("find", "tool_retrievals"), answer("done", "none")])
    shown = chats["shop_agent"][2]["content"].split(" ; ")
    assert len(shown) == 3 and all(document.count(":") == 2 for document in shown)


def test_a_forgotten_tag_costs_the_format_reward_alone():
    task = task_of("math")
    (played,) = playing([task])
    right = next(call.text for call in played.calls if call.agent == "math_agent")
    trajectory, _ = one(task, math_agent=[right.replace("</think>", "")])
    marks = {call.agent: call.reward_specific for call in trajectory.calls}
    assert trajectory.reward == 1.0 and marks == {"master": 1.0, "math_agent": 0.0}


def test_a_system_that_never_answers_ends():
    loop = [call("find", "tool_retrievals")] * 99
    trajectory, _ = one(task_of("math"), master=loop)
    assert trajectory.ok and trajectory.reward == 0.0 and trajectory.metrics["unanswered"] == 1.0
    assert trajectory.metrics["rounds"] == JoyAgents("tiny").max_rounds
    trajectory, _ = one(task_of("shop"), shop_agent=loop)
    assert trajectory.result.answer == "error: shop_agent gave no answer"


def test_a_memory_of_the_same_question_answers_at_once_and_others_do_not():
    task = task_of("cooperation")
    asked = []

    def recall(agent, query):
        asked.append((agent, query))
        if agent != "master":
            return [Memory(2, agent, f"not {query}", (), "wrong", 1, 2.0)]
        return [Memory(1, agent, query, ("shop_agent",), task.ground_truth["target"][0], 1, 2.0)]

    (trajectory,) = playing([task], memory=recall)
    assert trajectory.reward == 1.0 and trajectory.metrics["rounds"] == 1.0 and asked == [("master", task.question)]
    (use,) = trajectory.uses.values()
    assert (use.agent, use.recalled, use.plan) == ("master", (1,), ())

    def misleading(agent, query):
        return [Memory(2, agent, f"not {query}", (), "wrong", 1, 2.0)]

    (trajectory,) = playing([task], memory=misleading)
    assert trajectory.reward == 1.0 and trajectory.metrics["rounds"] >= 6.0
    uses = [trajectory.uses[place] for place in sorted(trajectory.uses)]
    assert {use.agent for use in uses} == {"master", "shop_agent", "math_agent"}
    (master,) = [use for use in uses if use.agent == "master"]
    assert (
        master.plan[0] == "shop_agent" and master.plan[-1] == "math_agent" and master.output == trajectory.result.answer
    )


def test_node_wise_sampling_forks_at_every_output_of_every_agent():
    task = task_of("shop")

    async def scene():
        tools = tiny_shop.tools_of(tiny_shop.World(4))
        forest = forest_for(task, Player(), tools)
        await make_strategy("nmc", 3, ["master", *SPECIALISTS]).sample(forest)
        for tool in tools.values():
            await tool.close()
        return forest

    forest = asyncio.run(scene())
    assert len(forest.trajectories) == 1 + 2 * ROUNDS["shop"] and all(t.reward == 1.0 for t in forest.trajectories)


def test_fewer_specialists_and_wrong_arguments():
    task = task_of("shop")
    (trajectory,) = playing([task], specialists=["math_agent", "question_agent"])
    assert trajectory.result.answer == "error: there is no tool 'shop_agent'"
    for wrong in ({"prompts": "small"}, {"specialists": ["cook"]}, {"specialists": []}, {"max_rounds": 0}):
        with pytest.raises(ValueError, match="mas.workflow"):
            JoyAgents(**{"prompts": "tiny", **wrong})


def test_what_the_papers_cases_show_differently_is_an_option_each():
    """Tables 8 to 10 against Figures 5 to 7: history, apis and found (docs/joyagents.md)."""
    task = task_of("function")
    kind, name, _ = task.question.split(":")

    def chats(**options):
        looked = call("look", "tool_retrievals", intention=task.question)
        said = {"master": [looked, call("do", "function_agent", intention=task.question), answer("so", "5")]}
        said["function_agent"] = [call("none", "tool_retrievals", intention=task.question), answer("so", "5")]
        (played,) = playing([task], Scripted(**said), prompts="faithful", **options)
        assert played.ok, played.error
        return {one.agent: [m["content"] for m in one.messages] for one in played.calls}, said

    usual, said = chats()
    assert said["master"][0] in usual["master"] and said["function_agent"][0] in usual["function_agent"]
    documents = usual["function_agent"][-1]
    assert documents not in usual["function_agent"][0] and "function-0" not in usual["master"][3]
    bare, _ = chats(history="calls")
    for agent in said:
        assert said[agent][0].partition("</think>")[2] in bare[agent] and said[agent][0] not in bare[agent]
    listed, _ = chats(apis="listed")
    assert documents in listed["function_agent"][0] and listed["master"] == usual["master"]
    found, _ = chats(found="functions")
    first = json.loads(documents.splitlines()[0])
    assert f"function-0: {first['name']}: {first['description']}" in found["master"][3]
    for wrong in ("history", "apis", "found"):
        with pytest.raises(ValueError, match=f"mas.workflow.{wrong}='x' is unknown; allowed: "):
            JoyAgents(**{wrong: "x"})
