"""A chat server as the core's engine."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers import Script, forest_of
from tests.serving import ChatServer, answer, question_of
from verl_ext.mas import Status
from verl_ext.mas.endpoint import EndpointLLM
from verl_ext.mas.session import Session
from verl_ext.mas.types import PromptTooLong, Stream
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
