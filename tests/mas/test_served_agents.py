"""Agents that other models answer for, and streams that go on behind a stop string, over a real server."""

from __future__ import annotations

import asyncio
import json

import pytest
from omegaconf import OmegaConf

from tests.helpers import FakeLLM, Script, forest_of, speaker
from tests.serving import ChatServer, answer, question_of
from tests.trainer.test_config import configured
from verl_ext.mas import Task
from verl_ext.mas.endpoint import EndpointLLM
from verl_ext.mas.session import Session
from verl_ext.mas.types import Stream
from verl_ext.recipe.deepagent import DeepAgent
from verl_ext.sampling.base import unique_calls
from verl_ext.tools.chat import ChatEndpoint
from verl_ext.tools.chat.wire import Answer, until_stop
from verl_ext.trainer.build import build_workflow
from verl_ext.trainer.config import read_mas_config

STOPS = ("</tool_call>", "</tool_search>", "<fold_thought>")


@pytest.mark.parametrize(
    "text,by,reason,expected",
    [
        ("a <tool_call>{}", "</tool_call>", "completed", "a <tool_call>{}</tool_call>"),  # vLLM, SGLang
        ("a ", "<fold_thought>", "completed", "a <fold_thought>"),
        ("a <tool_call>{}", "", "completed", "a <tool_call>{}</tool_call>"),  # servers that do not say
        ("<tool_search>q</tool_search> went on", "", "completed", "<tool_search>q</tool_search>"),  # that ignore `stop`
        ("b <fold_thought> and <tool_call>", "", "length", "b <fold_thought>"),
        ("<tool_search> mentioned <tool_call>{}", "", "completed", "<tool_search> mentioned <tool_call>{}</tool_call>"),
        ("a <tool_call>{", "", "length", "a <tool_call>{"),
        ("the answer", "", "completed", "the answer"),
        ("the answer", "other", "completed", "the answer"),
    ],
)
def test_stop_strings_that_servers_leave_out(text, by, reason, expected):
    assert until_stop(Answer(text, stop_reason=reason, stopped_by=by), STOPS) == expected
    assert until_stop(Answer(text, stop_reason=reason, stopped_by=by), ()) == text


@pytest.mark.parametrize(
    "text,reasoning,goes_on,by,expected",
    [
        ("", "Hm <tool_call>{}", False, "</tool_call>", "<think>\nHm <tool_call>{}</tool_call>"),  # R1, QwQ
        ("", "\nHm <tool_call>{}", False, "</tool_call>", "<think>\nHm <tool_call>{}</tool_call>"),  # Qwen3
        ("", "Hm <tool_call>{}", False, "", "<think>\nHm <tool_call>{}</tool_call>"),  # servers that do not say
        ("\n\n5", "Hm\n", False, "", "<think>\nHm\n</think>\n\n5"),
        ("\n\n5", "so\n", True, "", "so\n</think>\n\n5"),  # opened before, in the same message
        ("", "so <fold_thought> and", True, "", "so <fold_thought>"),
        ("", "no end", False, "", "<think>\nno end"),
    ],
)
def test_reasoning_is_part_of_a_text_that_stops(text, reasoning, goes_on, by, expected):
    sent = [{"role": "assistant" if goes_on else "user", "content": ""}]
    answer = Answer(text, reasoning, stopped_by=by, sent=sent)
    assert until_stop(answer, STOPS) == expected
    assert until_stop(answer, ()) == text


def test_a_stream_goes_on_over_a_server_in_one_message():
    call = '<tool_call>{"name": "f", "arguments": {}}'

    def behave(body, number):
        assert body["stop"] == ["</tool_search>", "</tool_call>", "<fold_thought>"][: 2 + number]
        said = answer(call if number == 0 else "\\boxed{5}")
        said["choices"][0]["stop_reason"] = "</tool_call>" if number == 0 else None
        return said

    async def tool_call(name, arguments):
        return {"ok": True, "result": "five"}

    async def scenario(url):
        llm = EndpointLLM(ChatEndpoint(url, retries=0))
        forest = forest_of(DeepAgent(), llm, tools={"tool_call": tool_call})
        forest.task = Task("q", {"target": ["5"]})
        forest.sampling = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "max_tokens": 9}
        try:
            return await Session(forest, Stream("0")).run()
        finally:
            await llm.close()

    with ChatServer(behave) as server:
        trajectory = asyncio.run(scenario(server.url))
    assert trajectory.ok and trajectory.reward == 1.0, trajectory.error
    roles = [message["role"] for message in server.requests[1]["messages"]]
    assert roles == ["system", "user", "assistant"]
    assert question_of(server.requests[1]) == call + "</tool_call>\n<tool_call_result>\nfive\n</tool_call_result>\n"
    flags = [(body.get("continue_final_message"), body.get("add_generation_prompt")) for body in server.requests]
    assert flags == [(None, None), (True, False)]


def test_a_served_agent_stands_beside_the_policy_and_does_not_train():
    mas = OmegaConf.create({"workflow": {"_target_": "tests.mas.test_served_agents.Pair"}})

    async def scenario(url):
        section = {"workflow": dict(mas.workflow), "agents": {"b": {"endpoint": {"url": url, "retries": 0}}}}
        workflow = build_workflow(read_mas_config(configured(**section)))
        forest = forest_of(workflow, FakeLLM(lambda request: "mine"))
        forest.sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_tokens": 9}
        trajectory = await Session(forest, Stream("0")).run()
        await workflow.agents["b"].llm.close()
        return workflow, trajectory

    with ChatServer(lambda body, number: answer("served")) as server:
        workflow, trajectory = asyncio.run(scenario(server.url))
    assert [call.text for call in trajectory.calls] == ["mine", "served", "mine"], trajectory.error
    assert workflow.trained_agents == ["a"] and [c.agent for c in unique_calls([trajectory])] == ["a", "a"]
    assert len(server.requests) == 1 and json.dumps(server.requests[0])


class Pair(Script):
    """a, b, a."""

    def __init__(self):
        async def run(task, ctx):
            await ctx.call("a", n=1)
            await ctx.call("b", n=2)
            return await ctx.call("a", n=3)

        super().__init__(run, {name: speaker(name) for name in "ab"})


def test_a_served_agent_cannot_be_trained():
    section = {"agents": {"b": {"endpoint": {"url": "http://x/v1"}, "trained": True}}}
    section["workflow"] = {"_target_": "tests.mas.test_served_agents.Pair"}
    with pytest.raises(ValueError, match=r"mas.agents.b: a served model \(endpoint\) cannot be trained"):
        build_workflow(read_mas_config(configured(**section)))
