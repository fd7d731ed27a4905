"""What the server serves and refuses, and how it says so."""

from __future__ import annotations

import json
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.chatting import ADD, Scripted, calling
from tests.gateway.programs import Program, ask, forest_of, played, post, run
from tests.helpers import FakeLLM, walk
from verl_ext.mas.types import Status
from verl_ext.observe.error_log import ErrorLog
from verl_ext.observe.question_stats import question_stats

USER = [{"role": "user", "content": "hello"}]


def refused(body, path="chat/completions", key=None):
    """The answer to one request of a program."""
    played_ = played(lambda task, endpoint: post(f"{endpoint.base_url}/{path}", key or endpoint.api_key, body))
    return played_.result


def nested(depth):
    """Lists in lists."""
    return [nested(depth - 1)] if depth else []


def adding(parameters):
    """The tool `add` with these parameters."""
    return {"type": "function", "function": {"name": "add", "parameters": parameters}}


IMAGE = [
    {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "x"}}]}
]
WRONG = [
    ({"model": "gpt-4", "messages": USER}, 404, "model_not_found", "planner, solver"),
    ({"messages": USER}, 404, "model_not_found", "planner, solver"),
    ({"model": "planner", "messages": USER, "n": 2}, 400, "unsupported", "ask n times"),
    ({"model": "planner", "messages": IMAGE}, 400, "unsupported_content", "image_url"),
    ({"model": "planner", "messages": [{"role": "robot", "content": "x"}]}, 400, "invalid", "robot"),
    ({"model": "planner", "messages": [{"role": "function", "content": "x"}]}, 400, "invalid", "tool"),
    ({"model": "planner", "messages": []}, 400, "invalid", "at least one"),
    ({"model": "planner", "messages": USER, "functions": []}, 400, "unsupported_parameter", "tools"),
    ({"model": "planner", "messages": USER, "max_tokens": 0}, 400, "invalid", "max_tokens=0"),
    ({"model": "planner", "messages": USER, "stop": [""]}, 400, "invalid", "stop"),
    ({"model": "planner", "messages": USER, "tools": [{"name": "x"}]}, 400, "invalid", "function"),
    ({"model": "planner", "messages": USER, "tools": [adding("number")]}, 400, "invalid", "parameters of the tool"),
    ({"model": "planner", "messages": USER, "tools": [adding({"required": 1})]}, 400, "invalid", "JSON Schema"),
    (
        {"model": "planner", "messages": USER, "tools": [adding({"properties": {"a": {"type": 1}}})]},
        400,
        "invalid",
        "JSON Schema",
    ),
    ({"model": "planner", "messages": USER, "tools": [ADD], "tool_choice": "sometimes"}, 400, "invalid", "auto"),
    ({"model": ["planner"], "messages": USER}, 400, "invalid", "model must be a text"),
    ({"model": "planner", "messages": USER, "tools": 5}, 400, "invalid", "tools must be a list"),
    ({"model": "planner", "messages": USER, "stream": "false"}, 400, "invalid", "stream must be true or false"),
    ({"model": "planner", "messages": [{"role": "assistant", "tool_calls": 5}]}, 400, "invalid", "messages[0].tool_c"),
    ({"model": "planner", "messages": [{"role": "user", "content": nested(200)}]}, 400, "invalid_body", "nested"),
    (["no object"], 400, "invalid_body", "JSON object"),
    (b"{no json", 400, "invalid_body", "no JSON"),
    (b"[" * 200_000, 400, "invalid_body", "nested"),
]


@pytest.mark.parametrize(("body", "status", "code", "words"), WRONG)
def test_what_cannot_be_served_is_refused_in_openais_form(body, status, code, words):
    got, answer = refused(body)
    assert got == status and set(answer) == {"error"}
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["code"] == code and words in answer["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"metadata": []}, "metadata must be an object"),
        ({"tools": 5}, "tools must be a list"),
        ({"tool_choice": {"type": ["auto"]}}, "allowed types"),
    ],
)
def test_fields_of_the_wrong_type_are_named_in_anthropics_form(fields, words):
    status, answer = refused({"model": "planner", "messages": USER, **fields}, "messages")
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error") and words in answer["error"]["message"]


@pytest.mark.parametrize("path", ["chat/completions", "messages"])
def test_an_error_of_the_server_itself_has_the_form_of_the_api_and_is_logged_once(path, monkeypatch, caplog):
    def broken(*arguments):
        raise LookupError("a mistake in here")

    monkeypatch.setattr("verl_ext.gateway.server.completion", broken)
    monkeypatch.setattr("verl_ext.gateway.server.message", broken)

    def program(task, endpoint):
        body = {"model": "planner", "messages": USER}
        return [post(f"{endpoint.base_url}/{path}", endpoint.api_key, body) for _ in range(2)][0]

    status, answer = played(program).result
    assert status == 500 and "LookupError: a mistake in here" in answer["error"]["message"]
    assert ("code" in answer["error"]) == (path != "messages")
    assert [record.levelname for record in caplog.records] == ["ERROR"] and "in broken" in caplog.text


def test_other_paths_and_keys_are_refused():
    assert refused({}, "responses")[0] == 404 and "chat completions" in refused({}, "responses")[1]["error"]["message"]
    status, answer = refused({"model": "planner", "messages": USER}, key="sk-guessed")
    assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
    status, answer = refused({"model": "nobody", "max_tokens": 5, "messages": USER}, "messages")
    assert (status, answer["type"], answer["error"]["type"]) == (404, "error", "not_found_error")


def test_a_huge_body_is_refused_and_the_program_goes_on():
    def program(task, endpoint):
        body = {"model": "planner", "messages": [{"role": "user", "content": "x" * 5000}]}
        status, answer = post(f"{endpoint.base_url}/chat/completions", endpoint.api_key, body)
        return status, answer["error"]["message"], ask(endpoint, "planner", "short")

    status, message, text = played(program, gateway={"max_body": 2000}).result
    assert status == 413 and "mas.gateway.max_body=2000" in message and text == "an answer"


def test_models_are_the_agents():
    def program(task, endpoint):
        headers = {"x-api-key": endpoint.api_key}
        with urlopen(Request(f"{endpoint.base_url}/models", headers=headers), timeout=60) as answer:
            return [model["id"] for model in json.loads(answer.read())["data"]]

    assert played(program).result == ["planner", "solver"]


def test_what_is_ignored_is_said_once(tmp_path):
    def program(task, endpoint):
        for temperature in (0.2, 0.2, 1.0):
            ask(endpoint, "planner", "x", temperature=temperature, presence_penalty=1, response_format={"type": "text"})
        for top in (0, 2, 2):
            ask(endpoint, "planner", "x", logprobs=True, top_logprobs=top)

    forests = [forest_of(Program(program)) for _ in range(2)]
    for forest in forests:
        assert run(walk(forest)).ok
    log = ErrorLog(tmp_path)
    log.tell([question_stats(forest, []) for forest in forests], "step 1")
    log.tell([question_stats(forests[0], [])], "step 2")
    said = log.path.read_text().split("\n\n")
    assert len(said) == 3 and all(text.strip().startswith("step 1: gateway: ") for text in said)
    for words in ("top_logprobs", "temperature=0.2 of requests is ignored: the policy is sampled at temperature=1.0",
                  "presence_penalty"):  # fmt: skip
        assert sum(words in text for text in said) == 1


ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [ADD]}}
REMARKS = [
    ("chat/completions", {"tools": [ADD], "parallel_tool_calls": False}, "parallel_tool_calls"),
    ("chat/completions", {"tools": [ADD], "tool_choice": ALLOWED}, "tool_choice.allowed_tools.tools"),
    ("messages", {"top_k": 5}, "top_k"),
    ("messages", {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, "disable_parallel_tool_use"),
    ("messages", {"messages": [*USER, {"role": "assistant", "content": "It is"}]}, "does not go on from it"),
]


@pytest.mark.parametrize(("path", "fields", "words"), REMARKS)
def test_what_is_read_otherwise_than_it_is_meant_is_said(path, fields, words):
    forest = forest_of(
        Program(
            lambda task, endpoint: post(
                f"{endpoint.base_url}/{path}", endpoint.api_key, {"model": "planner", "messages": USER, **fields}
            )
        ),
        Scripted([calling(1, 2)]),
    )
    assert run(walk(forest)).result[0] == 200
    assert [words in remark for remark in forest.remarks] == [True]


def test_a_tool_choice_that_names_nothing_is_refused():
    status, answer = refused({"model": "planner", "messages": USER, "tools": [ADD], "tool_choice": {"type": "custom"}})
    assert status == 400 and "custom" in answer["error"]["message"]


@pytest.mark.parametrize(
    "headers", [{"Authorization": "Bearer other", "x-api-key": "KEY"}, {"Authorization": "bearer KEY"},
                {"Authorization": "Bearer KEY", "x-api-key": "other"}, {"Authorization": "KEY"}]
)  # fmt: skip
def test_the_key_is_found_in_either_header(headers):
    def program(task, endpoint):
        given = {name: value.replace("KEY", endpoint.api_key) for name, value in headers.items()}
        return urlopen(Request(f"{endpoint.base_url}/models", headers=given), timeout=60).status

    assert played(program).result == 200


def test_sampling_parameters_reach_the_engine_and_the_identity():
    """max_tokens is at most the configured one; a stop text ends the output and is not part of the answer."""
    llm = FakeLLM(lambda request: f"text {len(llm.log)} END")

    def program(task, endpoint):
        return [
            ask(endpoint, "planner", "x", max_tokens=1000, stop="END"),
            ask(endpoint, "planner", "x", max_completion_tokens=5, seed=7),
            ask(endpoint, "planner", "x", max_completion_tokens=5, seed=8),
        ]

    trajectory = played(program, llm)
    assert trajectory.result == ["text 1 ", "text 2 END", "text 3 END"]
    assert [request.sampling["max_tokens"] for request in llm.log] == [64, 5, 5]
    assert llm.log[0].sampling["stop"] == ["END"]
    assert len({call.id.content for call in trajectory.calls}) == 3 and {call.id.turn for call in trajectory.calls} == {
        0
    }


def test_a_request_that_is_too_long_has_a_status_of_its_own():
    def program(task, endpoint):
        return ask(endpoint, "planner", "x" * 500)

    async def work():
        forest = forest_of(Program(program), FakeLLM(), limits={"max_prompt_tokens": 100})
        trajectory = await walk(forest)
        await forest.close()
        return trajectory

    trajectory = run(work())
    assert trajectory.status is Status.PROMPT_TOO_LONG and "100" in trajectory.error


def test_an_error_is_not_asked_again_by_clients():
    def program(task, endpoint):
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        try:
            urlopen(Request(f"{endpoint.base_url}/chat/completions", b"{", headers), timeout=60)
        except HTTPError as error:
            return error.headers["x-should-retry"]

    assert played(program).result == "false"
