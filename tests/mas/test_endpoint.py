"""A chat server as the core's engine."""

from __future__ import annotations

import asyncio

import pytest

from tests.chatting import ADD
from tests.helpers import Script, forest_of
from tests.serving import ChatServer, answer, question_of
from verl_ext.mas import Agent, Status
from verl_ext.mas.endpoint import EndpointLLM
from verl_ext.mas.session import Session
from verl_ext.mas.types import PromptTooLong, Stream
from verl_ext.observe.trajectories import trace_question
from verl_ext.tools.chat import ChatEndpoint, EndpointFailed

GREEDY = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "max_tokens": 9, "seed": 3}
CHAT = [{"role": "user", "content": "Where is the Louvre?"}]


def ask(server, connect=False, **sampling):
    async def scenario():
        llm = EndpointLLM(ChatEndpoint(server.url, retries=0))
        try:
            if connect:
                await llm.connect()
            return await llm.complete(CHAT, llm.encode(CHAT), {**GREEDY, **sampling}, ("q",))
        finally:
            await llm.close()

    return asyncio.run(scenario())


@pytest.mark.parametrize("connect", [False, True])
def test_an_answer_is_a_completion_without_tokens(connect):
    with ChatServer(lambda body, number: answer("Pa", "length", reasoning_content="Hm")) as server:
        done = ask(server, connect)
    assert (done.text, done.reasoning, done.prompt_tokens, done.generated_tokens) == ("Pa", "Hm", 7, 2)
    assert done.generation.token_ids == [] == done.generation.log_probs and done.generation.stop_reason == "length"


@pytest.mark.parametrize(("text", "ends"), [("Hm <b> and so on", "completed"), ("Hm and so on", "length")])
def test_a_text_that_stops_before_the_servers_end_of_it_is_complete(text, ends):
    with ChatServer(lambda body, number: answer(text, "length")) as server:
        done = ask(server, stop=["</a>", "<b>"])
    assert done.text == ("Hm <b>" if ends == "completed" else text)
    assert done.generation.stop_reason == ends


def test_a_prompt_too_long_is_the_cores_own_exception_and_others_are_the_engines():
    with ChatServer(lambda body, number: (400, {"error": {"message": "context_length_exceeded"}})) as server:
        with pytest.raises(PromptTooLong, match="status 400"):
            ask(server)
    with ChatServer(lambda body, number: (400, {"error": {"message": "no"}})) as server:
        with pytest.raises(EndpointFailed, match="status 400"):
            ask(server)


def test_a_workflow_runs_on_it():
    """Agents' calls go to the server; one whose prompt is too long there has that status."""

    async def two(task, ctx):
        said = await ctx.call("a", said=task.question)
        return await ctx.call("b", said=said)

    def behave(body, number):
        if question_of(body).startswith("b"):
            return 400, {"error": {"message": "prompt is too long"}}
        return answer("yes")

    async def scenario():
        llm = EndpointLLM(ChatEndpoint(server.url, retries=0))
        try:
            sampling = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "max_tokens": 9}
            return await Session(forest_of(Script(two, "ab"), llm, sampling=sampling), Stream("0")).run()
        finally:
            await llm.close()

    with ChatServer(behave) as server:
        trajectory = asyncio.run(scenario())
    first, second = trajectory.calls
    assert (first.status, first.text, first.prompt_tokens) == (Status.OK, "yes", 7)
    assert second.status is Status.PROMPT_TOO_LONG and not trajectory.ok


def test_tools_are_sent_natively_and_read_from_the_message():
    """Ids of tool calls are ours: a function of the call, not of the server."""
    function = {"name": "add", "arguments": '{"a": 1, "b": 2}'}
    called = [{"id": "call_from_server", "type": "function", "function": function}]

    def behave(body, number):
        return answer(None, "tool_calls", tool_calls=called) if number == 0 else answer("It is 3.")

    async def program(task, ctx):
        messages = [{"role": "user", "content": "1 + 2?"}]
        first = await ctx.chat("a", messages, tools=[ADD], tool_choice="required", sampling={"max_tokens": 5})
        messages += [first.message, *await ctx.run_tools(first)]
        return first, await ctx.chat("a", messages, tools=[ADD])

    async def add(a: int, b: int) -> int:
        return a + b

    async def scenario():
        llm = EndpointLLM(ChatEndpoint(server.url, retries=0))
        try:
            sampling = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "max_tokens": 9}
            forest = forest_of(Script(program, {"a": Agent()}), llm, sampling=sampling, tools={"add": add})
            trajectory = await Session(forest, Stream("0")).run()
            forest.trajectories.append(trajectory)
            return trajectory, trace_question(forest)
        finally:
            await llm.close()

    with ChatServer(behave) as server:
        trajectory, trace = asyncio.run(scenario())
    assert trajectory.ok, trajectory.error
    first, second = trajectory.result
    assert first.finish_reason == "tool_calls" and first.content is None and second.content == "It is 3."
    assert first.tool_calls[0]["id"] != "call_from_server" and first.prompt_tokens == 7 and first.logprobs == []
    sent = server.requests
    assert sent[0]["tools"] == [ADD] and sent[0]["tool_choice"] == "required" and sent[0]["max_tokens"] == 5
    assert sent[1]["tool_choice"] == "auto" and sent[1]["messages"][1]["tool_calls"] == first.tool_calls
    assert sent[1]["messages"][2] == {"role": "tool", "tool_call_id": first.tool_calls[0]["id"], "content": "3"}
    assert '"name": "add"' in trace.calls[0]["output"]  # the log shows the call
