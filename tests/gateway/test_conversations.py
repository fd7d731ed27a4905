"""Chats that go on: as one sequence of tokens where the program repeats what was said, else afresh."""

from __future__ import annotations

from tests.chatting import ADD, Scripted, calling
from tests.gateway.programs import ask, played, post, stream
from tests.helpers import FakeLLM

USER = [{"role": "user", "content": "hello"}]


def anthropic(endpoint, messages, **fields):
    body = {"model": "planner", "max_tokens": 50, "messages": messages, "system": "Calculate.", **fields}
    body["tools"] = [{"name": "add", "input_schema": ADD["function"]["parameters"]}]
    return f"{endpoint.url}/v1/messages", endpoint.api_key, body


def test_anthropics_messages_go_on_token_by_token():
    """A tool call, its result, and an answer: one sequence of tokens; the last answer is streamed."""

    def program(task, endpoint):
        messages = [{"role": "user", "content": "1 + 2?"}]
        status, first = post(*anthropic(endpoint, messages))
        assert status == 200 and first["stop_reason"] == "tool_use", first
        text, use = first["content"]
        assert text["text"] == "Adding." and use["input"] == {"a": 1, "b": 2}
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": [{"type": "text", "text": "3"}]}
        messages += [{"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
        return stream(*anthropic(endpoint, messages, stop_sequences=["."]))

    trajectory = played(program, Scripted([calling(1, 2, "Adding.\n"), "It is 3."]))
    one, two = trajectory.calls
    assert two.continues is one and two.parents == (one,)
    kinds = [event["type"] for event in trajectory.result]
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and "content_block_delta" in kinds
    said = "".join(event["delta"]["text"] for event in trajectory.result if event["type"] == "content_block_delta")
    assert said == "It is 3"
    assert trajectory.result[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "."}


def test_images_are_refused_in_anthropics_form():
    image = [{"role": "user", "content": [{"type": "image", "source": {}}]}]
    status, answer = played(lambda task, endpoint: post(*anthropic(endpoint, image))).result
    assert (
        status == 400 and answer["error"]["type"] == "invalid_request_error" and "image" in answer["error"]["message"]
    )


def test_no_token_differs_over_turns_with_tools():
    """The program strips the answers, as many do. What was sampled is what the next prompt begins with."""
    outputs = [calling(1, 2), " It is 3. \n", calling(3, 4, "Let me see: é🙂\n"), "7", "", "Over."]

    def program(task, endpoint):
        messages = list(USER)
        for _ in outputs:
            body = {"model": "planner", "messages": messages, "tools": [ADD]}
            status, answer = post(f"{endpoint.base_url}/chat/completions", endpoint.api_key, body)
            assert status == 200, answer
            message = answer["choices"][0]["message"]
            message["content"] = (message["content"] or "").strip()
            messages.append(message)
            for call in message.get("tool_calls", ()):
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "7"})
            if not message.get("tool_calls"):
                messages.append({"role": "user", "content": "and more?"})

    calls = played(program, Scripted(outputs), limits={"max_prompt_tokens": 10**5}).calls
    assert len(calls) == len(outputs)
    for before, call in zip(calls, calls[1:], strict=False):
        had = before.prompt_ids + before.generation.token_ids
        assert call.continues is before and call.prompt_ids[: len(had)] == had


def test_answers_that_differ_in_blanks_alone_are_each_put_back_in_their_place():
    """A later "yes" was put in the place of an earlier "yes\\n", although the program had kept that as it was."""
    outputs = ["yes\n", "yes", "\n", calling(1, 2), " yes", "Over."]

    def program(task, endpoint):
        messages = list(USER)
        for number in range(len(outputs)):
            body = {"model": "planner", "messages": messages, "tools": [ADD]}
            status, answer = post(f"{endpoint.base_url}/chat/completions", endpoint.api_key, body)
            assert status == 200, answer
            message = answer["choices"][0]["message"]
            messages.append(message)
            for call in message.get("tool_calls", ()):
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "7"})
            messages.append({"role": "user", "content": f"and {number}?"})

    calls = played(program, Scripted(outputs), limits={"max_prompt_tokens": 10**5}).calls
    for before, call in zip(calls, calls[1:], strict=False):
        assert call.continues is before


def test_an_answer_that_the_program_has_written_itself_stays_as_it_is():
    """An example in a prompt was changed to what the model had said elsewhere."""
    example = [{"role": "user", "content": "Is 1 odd?"}, {"role": "assistant", "content": "yes"}, *USER]

    def program(task, endpoint):
        said = ask(endpoint, "planner", "hello", stop=[" END"])
        body = {"model": "planner", "messages": example}
        return said, post(f"{endpoint.base_url}/chat/completions", endpoint.api_key, body)[0]

    trajectory = played(program, FakeLLM(lambda request: "yes END"))
    assert trajectory.result == ("yes", 200)
    assert trajectory.calls[1].messages == example


def test_a_rewritten_history_starts_afresh():
    def program(task, endpoint):
        said = ask(endpoint, "planner", "hello")
        rewritten = [*USER, {"role": "assistant", "content": said + " (shortened)"}, {"role": "user", "content": "on"}]
        body = {"model": "planner", "messages": rewritten}
        return post(f"{endpoint.base_url}/chat/completions", endpoint.api_key, body)

    one, two = played(program, Scripted(["A first answer.", "A second."])).calls
    assert two.continues is None and two.parents == (one,)
