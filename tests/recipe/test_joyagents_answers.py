"""Which answers count: whole ones, and of functions those that report what was called; what of them is remembered."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.helpers import walk
from tests.recipe.shop_player import Player, answer, call
from tests.recipe.test_deepagent import cut_off
from tests.recipe.test_joyagents_tiny import Scripted, one, playing, task_of
from verl_ext.mas import Status
from verl_ext.mas.forest import Forest
from verl_ext.mas.limits import Limits
from verl_ext.memory import Memory
from verl_ext.recipe.joyagents import SingleAgent
from verl_ext.worlds import shop as shop_world
from verl_ext.worlds.shop import API_OF


def last_of(trajectory, agent):
    return [call for call in trajectory.calls if call.agent == agent][-1]


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("<think>total</think> 12", Status.TRUNCATED),
        ('<think>total</think><tool_call>{"name": "math_a', Status.UNPARSABLE),
    ],
)
def test_an_output_that_was_cut_off_is_no_answer(said, status):
    task = task_of("math")
    trajectory, _ = one(task, master=[cut_off(said.replace("12", task.ground_truth["target"][0]))])
    assert trajectory.ok and trajectory.calls[0].status is status and len(trajectory.calls) == 1
    assert (trajectory.result.answer, trajectory.result.limit) == ("", "tokens")
    assert trajectory.reward == 0.0 and trajectory.metrics["unanswered"] == 1.0
    assert [use.output for use in trajectory.uses.values()] == [""], "nothing that a memory is made of"


def test_a_call_that_is_whole_is_made_though_the_output_was_cut_off_behind_it():
    task = task_of("math")
    trajectory, _ = one(task, master=[cut_off(call("total", "math_agent"))])
    assert trajectory.reward == 1.0 and trajectory.metrics["unanswered"] == 0.0


def test_a_specialist_that_was_cut_off_gave_no_answer():
    trajectory, chats = one(task_of("math"), math_agent=[cut_off("<think>4 5 6")])
    assert last_of(trajectory, "master").messages[2]["content"] == "error: math_agent gave no answer"
    assert trajectory.reward == 0.0 and trajectory.metrics["unanswered"] == 0.0, "the master answered"


def reports(*names: str) -> str:
    """What reports these functions as called."""
    return " ; ".join(f'Pass calling {{"api_name": "{name}"}} : 8' for name in names)


@pytest.mark.parametrize("kind", ["shop", "function"])
def test_functions_that_nobody_called_are_claimed(kind):
    task = task_of(kind)
    (name,) = task.ground_truth["functions"]
    trajectory, _ = one(task, master=[answer("done", reports(name))])
    assert (trajectory.reward, trajectory.metrics["claimed"]) == (0.0, 1.0)
    trajectory, _ = one(task, **{f"{kind}_agent": [answer("done", reports(name))]})
    assert (trajectory.reward, trajectory.metrics["claimed"]) == (0.0, 1.0), "a specialist's word is no call"
    trajectory, _ = one(task)
    assert (trajectory.reward, trajectory.metrics["claimed"]) == (1.0, 0.0)


def test_the_answers_words_alone_count_where_calls_are_not_checked():
    """Section 4.3: "a response with correct function names is scored 1"."""
    task = task_of("shop")
    (name,) = task.ground_truth["functions"]
    for said, reward in ((reports(name), 1.0), (reports(name, "other"), 0.0)):
        (trajectory,) = playing([task], Scripted(master=[answer("done", said)]), check_calls=False)
        assert trajectory.reward == reward and trajectory.metrics["claimed"] > 0.0


def test_a_call_that_failed_is_none_and_one_of_several_is_one():
    task = task_of("shop")
    (name,) = task.ground_truth["functions"]
    outputs = [call("call", name, shop="No Such Shop"), answer("done", reports(name))]
    trajectory, chats = one(task, shop_agent=outputs)
    assert chats["shop_agent"][2]["content"].startswith("error")
    assert (trajectory.reward, trajectory.metrics["claimed"]) == (0.0, 1.0)
    trajectory, _ = one(task, master=[None, answer("done", reports(name, "a", "b"))])
    assert (trajectory.reward, trajectory.metrics["claimed"]) == (0.0, 2.0)


def test_answers_that_are_no_calls_are_judged_by_what_they_say():
    task = task_of("math")
    trajectory, _ = one(task, master=[answer("done", reports("a") + f" ; {task.ground_truth['target'][0]}")])
    assert (trajectory.reward, trajectory.metrics["claimed"]) == (1.0, 1.0)


@pytest.mark.parametrize("agent", ["master", "shop_agent"])
def test_a_memory_of_the_same_question_may_be_reported_and_one_of_another_may_not(agent):
    task = task_of("shop")
    (name,) = task.ground_truth["functions"]

    def remembering(query):
        def recall(asked, own):
            return [Memory(1, asked, query, ("x",), reports(name), 1, 2.0)] if asked == agent else []

        return recall

    (trajectory,) = playing([task], memory=remembering(task.question))
    assert (trajectory.reward, trajectory.metrics["claimed"]) == (1.0, 0.0)
    assert not [tool for tool in trajectory.tools if tool.name == "shop_call"], "the memory answered"
    liar = Scripted(**{agent: [answer("memory", reports(name))]})
    (trajectory,) = playing([task], liar, memory=remembering(f"{task.question}s"))
    assert (trajectory.reward, trajectory.metrics["claimed"]) == (0.0, 1.0)


def test_a_memory_keeps_the_worked_solution_and_the_master_is_given_it():
    task = task_of("math")
    (trajectory,) = playing([task], remember="output")
    uses = {use.agent: use.output for use in trajectory.uses.values()}
    said = last_of(trajectory, "math_agent").text
    steps, _, number = said.removeprefix("<think>").partition("</think>")
    assert steps.strip() and uses["math_agent"] == f"<think>{steps.strip()}</think>{number.strip()}"
    assert last_of(trajectory, "master").messages[2]["content"] == f"{steps.strip()}\n{number.strip()}"
    assert trajectory.reward == 1.0
    (trajectory,) = playing([task], remember="answer")
    assert {use.output for use in trajectory.uses.values()} == {number.strip()}


def test_a_thought_in_a_memory_reports_no_call():
    task = task_of("shop")
    (name,) = task.ground_truth["functions"]
    memory = Memory(1, "master", task.question, (), f"<think>{reports(name)}</think>none", 1, 2.0)
    liar = Scripted(master=[answer("memory", reports(name))])
    (trajectory,) = playing([task], liar, memory=lambda asked, own: [memory] if asked == "master" else [])
    assert (trajectory.reward, trajectory.metrics["claimed"]) == (0.0, 1.0)


def test_a_single_agent_calls_everything_itself():
    """Table 1's baseline: three searches, APIs of both catalogues, no memory; rewarded as the system is."""
    task = task_of("shop")
    _, shop, word = task.question.split(":")
    said = iter(
        [
            call("find", "tool_retrievals_API_shop", intention=task.question),
            call("find", "tool_retrievals_API_general", intention="director:film"),
            call("find", "tool_retrievals_knowledge", intention="returns"),
            call("call", API_OF[word], shop=shop),
            call("call", "no_such_function"),
        ]
    )

    def play_alone(request):
        seen = [message["content"] for message in json.loads(request.prompt) if message["role"] == "tool"]
        return next(said, None) or answer("done", seen[3])

    async def scene():
        tools, llm = shop_world.tools_of(shop_world.World(4)), Player()
        llm.answer = play_alone
        done = await walk(Forest(task, SingleAgent(), llm, tools, limits=Limits(max_prompt_tokens=100_000)))
        for tool in tools.values():
            await tool.close()
        return done

    trajectory = asyncio.run(scene())
    names = [tool.name for tool in trajectory.tools]
    assert names == ["shop_search", "function_search", "knowledge", "shop_call", "shop_call", "function_call"]
    assert trajectory.reward == 1.0 and trajectory.metrics["accuracy_shop"] == 1.0
    assert trajectory.metrics["rounds"] == 6.0 and trajectory.metrics["claimed"] == 0.0
