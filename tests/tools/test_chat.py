"""The chat client against a real server that misbehaves."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.serving import ChatServer, answer
from tests.tools.chatting import CHAT, GREEDY, SAMPLED, ask
from verl_ext.tools import chat
from verl_ext.tools.chat import ChatEndpoint, EndpointFailed, TooLong


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Waits between attempts are real, but short."""
    monkeypatch.setattr("verl_ext.tools.chat.MAX_WAIT", 0.3)


def test_a_greedy_request_and_its_answer():
    with ChatServer() as server:
        llm, (done,) = ask(server)
    assert server.requests == [{"model": "tiny", "messages": CHAT, "temperature": 0.0, "max_tokens": 9}]
    assert (done.text, done.prompt_tokens, done.generated_tokens) == ("Paris", 7, 2)
    assert done.stop_reason == "completed" and done.reasoning == ""
    assert llm.model == "tiny" and "Authorization" not in server.headers[0]


def test_a_sampled_request_carries_its_seed_in_31_bits_and_the_template(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    with ChatServer() as server:
        ask(server, SAMPLED, api_key_env="MY_KEY", template={"enable_thinking": False})
        ask(server, SAMPLED, seeded=False)
    first, second = server.requests
    assert (first["top_p"], first["top_k"], first["seed"]) == (0.9, 20, 5)
    assert first["chat_template_kwargs"] == {"enable_thinking": False}
    assert "seed" not in second and "chat_template_kwargs" not in second
    assert server.headers[0]["Authorization"] == "Bearer secret" and "Authorization" not in server.headers[1]


@pytest.mark.parametrize(
    "bad",
    [
        (429, {"error": "slow down"}),
        (500, b"oops"),
        (503, b""),
        (409, {"error": "locked"}),
        (520, b"unknown error"),
        (524, b"<html>the origin took too long to answer the prompt, context length</html>"),
        (529, {"error": "overloaded"}),
        (200, b"<html>gateway</html>"),
        (200, b'{"choices": [{"mess'),
        (200, b"[" * 100_000),
        (200, b"null"),
        {"choices": []},
        {"choices": None},
        {"choices": [{"message": None}]},
        {"choices": [{"message": {"content": 7}}]},
        {"choices": [{"message": {"content": ["x"]}}]},
        {"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": "many"}},
    ],
)
def test_what_may_pass_is_tried_again_and_a_bounded_number_of_times(bad):
    with ChatServer(lambda body, number: bad if number < 2 else answer()) as server:
        _, (done,) = ask(server)
        assert done.text == "Paris" and len(server.requests) == 3
    with ChatServer(lambda body, number: bad) as server:
        _, (done,) = ask(server, retries=1)
        assert isinstance(done, EndpointFailed) and "2 attempts" in str(done) and len(server.requests) == 2


def test_a_server_that_hangs_is_given_up_in_time():
    with ChatServer(lambda body, number: 30.0) as server:
        start = time.monotonic()
        _, (done,) = ask(server, timeout=0.3, retries=1)
    assert isinstance(done, EndpointFailed) and "no answer within 0.3 s" in str(done)
    assert time.monotonic() - start < 5


def test_the_servers_wish_to_wait_is_respected(monkeypatch):
    monkeypatch.setattr("verl_ext.tools.chat.MAX_WAIT", 30.0)
    monkeypatch.setattr("verl_ext.tools.chat.wait_random_exponential", lambda **_: lambda state: 0.0)
    busy = (429, {"error": "busy"}, {"Retry-After": "1"})
    with ChatServer(lambda body, number: answer() if number else busy) as server:
        start = time.monotonic()
        _, (done,) = ask(server)
    assert done.text == "Paris" and time.monotonic() - start >= 1.0


def test_a_connection_that_breaks_is_tried_again_and_then_told():
    with ChatServer() as server:
        url = server.url

        async def scenario():
            llm = ChatEndpoint(url, retries=1)
            await llm.connect()
            return llm

        async def after():
            llm = await scenario()
            server.__exit__()
            try:
                with pytest.raises(EndpointFailed, match="2 attempts"):
                    await llm.complete(CHAT, GREEDY)
            finally:
                await llm.close()

        asyncio.run(after())
        server.__enter__()  # for the block's own end


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_a_refused_request_is_not_tried_again(status):
    with ChatServer(lambda body, number: (status, {"error": {"message": "no \x1b[31m such thing"}})) as server:
        _, (done,) = ask(server, SAMPLED)
    assert isinstance(done, EndpointFailed) and len(server.requests) == 1
    assert f"status {status}" in str(done) and "such thing" in str(done) and "\x1b" not in str(done)


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        "context_length_exceeded",
        "the request exceeds the available context size",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "Too long input",
    ],
)
def test_a_prompt_too_long_for_the_server_has_a_name_of_its_own(message):
    with ChatServer(lambda body, number: (400, {"error": {"message": message}})) as server:
        _, (done,) = ask(server)
    assert isinstance(done, TooLong) and len(server.requests) == 1


def test_parameters_that_the_server_does_not_know_are_left_out_and_told(capsys):
    def picky(body, number):
        for name in ("seed", "top_k"):
            if name in body:
                return 400, {"error": {"message": f"Unrecognized request argument supplied: {name}"}}
        if "max_tokens" in body:
            return 400, {"error": {"message": "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'."}}
        return answer()

    with ChatServer(picky) as server:
        llm, done = ask(server, SAMPLED, times=4)
        assert [one.text for one in done] == ["Paris"] * 4
        assert llm.ignored == ["seed", "top_k"]
        assert server.requests[-1]["max_completion_tokens"] == 9
    said = capsys.readouterr().out
    assert said.count("does not take seed") == 1 and said.count("does not take top_k") == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (403, {"error": {"message": "the prompt is too long"}}),  # a policy, not the model's limit
        (400, {"error": {"message": "the name of the user is too long"}}),
        (422, {"detail": [{"loc": ["body", "messages"], "msg": "bad role", "input": "a context window"}]}),
    ],
)
def test_other_refusals_are_not_taken_for_a_prompt_too_long(status, body):
    with ChatServer(lambda *_: (status, body)) as server:
        _, (done,) = ask(server)
    assert isinstance(done, EndpointFailed) and len(server.requests) == 1


def echo(body):
    return [{"type": "enum", "loc": ["body", "messages"], "msg": "bad role", "input": body}]


@pytest.mark.parametrize(
    "refusal",
    [
        lambda body: {"detail": echo(body)},
        lambda body: {"error": {"message": f"1 validation error: {echo(body)}"}},
        lambda body: {"message": f"messages\n  bad role [type=enum, input_value={body}, input_type=dict]"},
        lambda body: {"detail": echo({**body, "padding": "x" * 5000})},
        lambda body: {"error": {"message": "seed must go with top_k"}},  # also without them
    ],
)
def test_a_bad_request_costs_the_others_no_parameter(refusal, capsys):
    """A refusal that repeats the request names every parameter; one that stays without them was not about them."""

    def behave(body, number):
        return (422, refusal(body)) if body["messages"][0]["content"] == "bad" else answer()

    async def scenario():
        llm = ChatEndpoint(server.url, "tiny", retries=0)
        for text in ("bad", "good"):
            await asyncio.gather(llm.complete([{"role": "user", "content": text}], SAMPLED), return_exceptions=True)
        await llm.close()
        return llm

    with ChatServer(behave) as server:
        llm = asyncio.run(scenario())
    assert llm.ignored == [] and not capsys.readouterr().out
    assert {"seed", "top_k"} <= set(server.requests[-1])


@pytest.mark.parametrize(
    "body",
    [
        {"detail": [{"loc": ["body", "top_k"], "msg": "Extra inputs are not permitted", "input": 20}]},
        {"error": "unknown field top_k"},
        {"detail": "top_k is not supported"},
        b"unknown argument: top_k",
    ],
)
def test_refusals_of_a_parameter_in_their_forms(body):
    with ChatServer(lambda asked, _: (422, body) if "top_k" in asked else answer()) as server:
        llm, (done,) = ask(server, SAMPLED)
    assert done.text == "Paris" and llm.ignored == ["top_k"]


@pytest.mark.parametrize(
    ("message", "text", "reasoning"),
    [
        ({"content": "Paris", "reasoning_content": "The Louvre is"}, "Paris", "The Louvre is"),
        ({"content": None, "reasoning": "Hm"}, "", "Hm"),
        (
            {"content": [{"type": "text", "text": "Pa"}, {"type": "image"}, {"type": "text", "text": "ris"}]},
            "Paris",
            "",
        ),
        ({"content": "\ud800\u2028\x00 </script>"}, "\ud800\u2028\x00 </script>", ""),
    ],
)
def test_texts_and_reasoning(message, text, reasoning):
    body = {"choices": [{"message": message, "finish_reason": "length"}]}
    with ChatServer(lambda _, number: body) as server:
        _, (done,) = ask(server)
    assert (done.text, done.reasoning, done.stop_reason) == (text, reasoning, "length")
    assert (done.prompt_tokens, done.generated_tokens) == (0, 0)  # a server without usage


def test_no_more_requests_at_a_time_than_allowed():
    with ChatServer(lambda body, number: 0.1) as server:
        ask(server, times=12, concurrency=3)
    assert server.peak == 3 and len(server.requests) == 12


def test_sampling_needs_a_temperature_and_a_limit_only():
    with ChatServer() as server:
        ask(server, {"temperature": 0.5, "max_tokens": 3})
    assert server.requests == [{"model": "tiny", "messages": CHAT, "temperature": 0.5, "max_tokens": 3}]


def test_an_answer_without_end_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr(chat, "MAX_BODY", 100_000)
    with ChatServer(lambda body, number: answer("x" * 100_001) if number else answer("x" * 90_000)) as server:
        _, (first,) = ask(server, retries=0)
        _, (second,) = ask(server, retries=0)
    assert len(first.text) == 90_000
    assert isinstance(second, EndpointFailed) and "an answer of more than 100000 bytes" in str(second)
