"""Answers in pieces, and half characters in them."""

from __future__ import annotations

import json

import pytest

from tests.chatting import ADD, Scripted, calling
from tests.gateway.programs import played, post, stream
from tests.helpers import FakeLLM

USER = [{"role": "user", "content": "hello"}]


def test_a_streamed_answer_is_the_whole_one_in_pieces():
    text = "A somewhat longer answer, é🙂, in several pieces." + calling(1, 2)

    def program(task, endpoint):
        body = {"model": "planner", "messages": USER, "tools": [ADD], "stream_options": {"include_usage": True}}
        body["logprobs"] = True
        return stream(f"{endpoint.base_url}/chat/completions", endpoint.api_key, body)

    trajectory = played(program, Scripted([text]))
    events, (call,) = trajectory.result, trajectory.calls
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    assert (
        "".join(delta.get("content") or "" for delta in deltas) == "A somewhat longer answer, é🙂, in several pieces."
    )
    (tool,) = [one for delta in deltas for one in delta.get("tool_calls", ())]
    assert tool["function"]["name"] == "add" and tool["id"] and tool["index"] == 0
    assert len({event["id"] for event in events}) == 1
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert events[-1]["usage"]["completion_tokens"] == len(call.generation.token_ids)
    logprobs = events[-2]["choices"][0]["logprobs"]["content"]
    assert [one["logprob"] for one in logprobs] == call.generation.log_probs


@pytest.mark.parametrize("path", ["chat/completions", "messages"])
def test_an_event_is_one_line_for_every_client(path):
    """`httpx.iter_lines`, with which clients read streams, ends lines at more characters than SSE does."""
    text = "one\u2028two\u2029three\x85four"

    def program(task, endpoint):
        return stream(f"{endpoint.base_url}/{path}", endpoint.api_key, {"model": "planner", "messages": USER})

    events = played(program, FakeLLM(lambda request: text)).result
    deltas = [event.get("delta") or event.get("choices", [{}])[0].get("delta", {}) for event in events]
    assert "".join(delta.get("content") or delta.get("text") or "" for delta in deltas) == text


HALF = "\\ud83d"  # half of a surrogate pair, as JSON writes it


@pytest.mark.parametrize("path", ["chat/completions", "messages"])
def test_half_a_character_in_a_tool_call_is_streamed_as_a_replacement(path):
    def program(task, endpoint):
        body = {"model": "planner", "messages": USER, "tools": [ADD]}
        if path == "messages":
            body["tools"] = [{"name": "add", "input_schema": ADD["function"]["parameters"]}]
        return stream(f"{endpoint.base_url}/{path}", endpoint.api_key, body)

    text = json.dumps(played(program, Scripted([calling(f'"{HALF}"', 1)])).result)
    assert HALF not in text and "\\ufffd" in text


def test_half_a_character_in_a_request_is_asked_as_a_replacement():
    arguments = json.dumps({"a": HALF}).replace("\\\\", "\\")
    said = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "add", "arguments": arguments}}]}

    def program(task, endpoint):
        body = json.dumps({"model": "planner", "messages": [{"role": "user", "content": "HALF"}, said], "tools": [ADD]})
        body = body.replace("HALF", HALF).encode()
        return post(f"{endpoint.base_url}/chat/completions", endpoint.api_key, body)[0]

    trajectory = played(program, Scripted(["an answer"]), limits={"max_prompt_tokens": 10**4})
    assert trajectory.result == 200 and trajectory.calls[0].messages[0]["content"] == "\ufffd"
