"""ctx.openai: the interface of the package `openai` over ctx.chat."""

from __future__ import annotations

import asyncio
import importlib.util
import json

import pytest

from tests.chatting import ADD, Scripted, calling
from tests.helpers import Script, forest_of, fork, run, walk
from verl_ext.mas import Agent
from verl_ext.mas.openai_client import chat_arguments
from verl_ext.mas.types import CallId

AGENTS = {"writer": Agent()}
HELLO = [{"role": "user", "content": "hello"}]


def answer(program, texts, **options):
    forest = forest_of(Script(program, AGENTS), Scripted(texts), **options)
    trajectory = run(walk(forest))
    assert trajectory.ok, trajectory.error
    return trajectory.result


def test_a_completion_has_openais_form():
    async def program(task, ctx):
        create = ctx.openai("writer").chat.completions.create
        first = await create(model="any", messages=HELLO, tools=[ADD], temperature=0.3, logprobs=True)
        message = first.choices[0].message
        call = message.tool_calls[0]
        result = {"role": "tool", "tool_call_id": call.id, "content": "3"}
        second = await create(model="any", messages=[*HELLO, message, result], tools=[ADD])
        return first, second, ctx.last

    first, second, last = answer(program, [calling(1, 2), "It is 3."])
    assert first.choices[0].finish_reason == "tool_calls" and first.choices[0].message.content is None
    assert json.loads(first.choices[0].message.tool_calls[0].function.arguments) == {"a": 1, "b": 2}
    assert len(first.choices[0].logprobs.content) == first.usage.completion_tokens > 5
    assert second.choices[0].message.content == "It is 3." and second.choices[0].finish_reason == "stop"
    assert second.usage.total_tokens == last.prompt_tokens + last.generated_tokens
    assert last.continues is not None  # the message object goes on from the answer that it came from
    if importlib.util.find_spec("openai"):
        from openai.types.chat import ChatCompletion

        assert isinstance(first, ChatCompletion)


def test_a_stream_adds_up_to_the_answer():
    async def program(task, ctx):
        create = ctx.openai("writer").chat.completions.create
        stream = await create(messages=HELLO, tools=[ADD], stream=True, stream_options={"include_usage": True})
        return [chunk async for chunk in stream]

    chunks = answer(program, [calling(1, 2, "Well: ")])
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "Well:"
    called = [call for delta in deltas for call in delta.tool_calls or []]
    assert [(call.index, call.function.name) for call in called] == [(0, "add")]
    assert [c.choices[0].finish_reason for c in chunks if c.choices] == [None, None, None, "tool_calls"]
    assert chunks[-1].usage.completion_tokens > 5


def test_code_in_a_thread_is_answered():
    def blocking(client):
        first = client.chat.completions.create(messages=HELLO)
        with client.chat.completions.create(messages=HELLO, stream=True) as stream:  # as LangChain does
            return first.choices[0].message.content + "".join(c.choices[0].delta.content or "" for c in stream)

    async def program(task, ctx):
        client = ctx.openai("writer")
        with pytest.raises(RuntimeError, match="to_thread"):
            client.sync.chat.completions.create(messages=HELLO)
        return await asyncio.to_thread(blocking, client.sync)

    forest = forest_of(Script(program, AGENTS), Scripted(["one ", "two"]))
    trajectory = asyncio.run(walk(forest))
    assert trajectory.ok and trajectory.result == "one two", trajectory.error


def test_a_replay_gives_the_same_bytes():
    async def program(task, ctx):
        client, bodies = ctx.openai("writer"), []
        for number in range(3):
            body = await client.chat.completions.create(messages=HELLO, tools=[ADD], logprobs=True, model=f"m{number}")
            bodies.append(json.dumps(body.model_dump(), sort_keys=True))
        return bodies

    forest = forest_of(Script(program, AGENTS), Scripted([calling(1, 2), calling(3, 4), "5", "6", "7"]))
    first = run(walk(forest))
    second = run(fork(forest, first, CallId((), "writer", 1)))
    assert first.ok and second.ok, second.error
    assert second.result[0] == first.result[0] and second.result[1] != first.result[1]
    assert len(set(first.result) | set(second.result)) == 5


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"messages": HELLO, "n": 2}, "n=2 is not supported; allowed: 1"),
        ({"messages": HELLO, "max_token": 2}, "max_token of a chat completion is not supported; allowed: messages"),
        ({"model": "m"}, "needs messages"),
    ],
)
def test_what_would_change_the_answer_is_refused(request_, message):
    with pytest.raises(ValueError, match=message):
        chat_arguments(request_)
