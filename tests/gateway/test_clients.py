"""The real clients of OpenAI and Anthropic, where they are installed."""

from __future__ import annotations

import pytest

from tests.chatting import ADD, Scripted, calling
from tests.gateway.programs import Program, forest_of, numbered, run
from tests.helpers import fork, walk

USER = [{"role": "user", "content": "1 + 2?"}]


def played(program, llm):
    async def work():
        return await walk(forest_of(Program(program), llm, limits={"max_prompt_tokens": 10**4}))

    trajectory = run(work())
    assert trajectory.ok, trajectory.error + trajectory.trace
    return trajectory


def test_openais_client_calls_tools_and_streams():
    openai = pytest.importorskip("openai")

    async def program(task, endpoint):
        client = openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
        first = await client.chat.completions.create(model="planner", messages=USER, tools=[ADD], seed=3)
        message = first.choices[0].message
        (call,) = message.tool_calls
        messages = [*USER, message, {"role": "tool", "tool_call_id": call.id, "content": "3"}]
        pieces = await client.chat.completions.create(model="planner", messages=messages, tools=[ADD], stream=True)
        text = "".join([piece.choices[0].delta.content or "" async for piece in pieces])
        with pytest.raises(openai.NotFoundError, match="planner, solver"):
            await client.chat.completions.create(model="gpt-4", messages=USER)
        models = [model.id async for model in client.models.list()]
        await client.close()
        return call.function.name, text, models

    trajectory = played(program, Scripted([calling(1, 2), "It is 3, of course and without doubt."]))
    assert trajectory.result == ("add", "It is 3, of course and without doubt.", ["planner", "solver"])
    one, two = trajectory.calls
    assert two.continues is one


def test_openais_blocking_client_is_replayed():
    openai = pytest.importorskip("openai")

    def program(task, endpoint):
        client = openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
        plan = client.chat.completions.create(model="planner", messages=USER)
        again = [*USER, {"role": "user", "content": plan.choices[0].message.content}]
        answer = client.chat.completions.create(model="solver", messages=again)
        client.close()
        return plan.model_dump_json(), answer.id

    async def work():
        forest = forest_of(Program(program), numbered())
        base = await walk(forest)
        return base, await fork(forest, base, base.calls[-1].id)

    base, again = run(work())
    assert base.ok and again.ok, base.error + again.error
    assert base.result[0] == again.result[0] and base.result[1] != again.result[1]


def test_anthropics_client_calls_tools_and_streams():
    anthropic = pytest.importorskip("anthropic")
    tools = [{"name": "add", "input_schema": ADD["function"]["parameters"]}]

    def program(task, endpoint):
        client = anthropic.Anthropic(base_url=endpoint.url, api_key=endpoint.api_key)
        asked = {"model": "planner", "max_tokens": 50, "tools": tools}
        first = client.messages.create(messages=USER, **asked)
        use = next(block for block in first.content if block.type == "tool_use")
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "3"}
        messages = [*USER, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        with client.messages.stream(messages=messages, **asked) as pieces:
            text = pieces.get_final_text()
        client.close()
        return use.input, text

    trajectory = played(program, Scripted([calling(1, 2, "Adding.\n"), "It is 3, of course and without doubt."]))
    assert trajectory.result == ({"a": 1, "b": 2}, "It is 3, of course and without doubt.")
    one, two = trajectory.calls
    assert two.continues is one
