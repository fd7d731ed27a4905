"""The chat client against a real server: requests, answers, retries, the choice of the model, connections."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from aiohttp import web

from tests.serving import ChatServer, answer
from tests.tools.chatting import CHAT, GREEDY, SAMPLED, ask, serve_and_ask
from verl_ext.tools.chat import ChatEndpoint, EndpointFailed, endpoint


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    """No pause between two attempts."""
    monkeypatch.setattr(endpoint, "MAX_WAIT", 0.0)


def test_a_greedy_request_and_its_answer():
    with ChatServer() as server:
        llm, (done,) = ask(server.url, model=None)
    assert server.requests == [{"model": "tiny", "messages": CHAT, "temperature": 0.0, "max_tokens": 9}]
    assert (done.text, done.prompt_tokens, done.generated_tokens) == ("Paris", 7, 2)
    assert done.stop_reason == "completed" and done.reasoning == ""
    assert llm.model == "tiny" and "Authorization" not in server.headers[0]


def test_a_sampled_request_carries_its_seed_in_31_bits_key_and_template(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    with ChatServer() as server:
        ask(server.url, SAMPLED, api_key_env="MY_KEY", template={"enable_thinking": False})
        ask(server.url, SAMPLED, {"temperature": 0.5, "max_tokens": 3}, seeded=False)
    first, second, least = server.requests
    assert (first["top_p"], first["top_k"], first["seed"]) == (0.9, 20, 5)
    assert first["chat_template_kwargs"] == {"enable_thinking": False}
    assert "seed" not in second and "chat_template_kwargs" not in second
    assert least == {"model": "tiny", "messages": CHAT, "temperature": 0.5, "max_tokens": 3}
    assert server.headers[0]["Authorization"] == "Bearer secret" and "Authorization" not in server.headers[1]


TRANSIENT = [
    *((status, {"error": "busy"}) for status in (408, 409, 429, 500, 503, 520, 529)),
    (524, b"<html>the origin took too long to answer the prompt, context length</html>"),
    *((200, body) for body in (b"<html>gateway</html>", b'{"choices": [{"mess', b"[" * 100_000, b"null")),
    {"choices": []},
    {"choices": None},
    {"choices": [{"message": None}]},
    {"choices": [{"message": {"content": 7}}]},
    {"choices": [{"message": {"content": ["x"]}}]},
    {"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": "many"}},
    (200, b'{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": 1e999}}'),
]


def test_transient_failures_are_tried_again_a_bounded_number_of_times():
    _, (done,), requests = serve_and_ask(lambda _, number: TRANSIENT[number] if number < len(TRANSIENT) else answer(),
                                         retries=len(TRANSIENT))  # fmt: skip
    assert done.text == "Paris" and len(requests) == len(TRANSIENT) + 1
    for failure in (TRANSIENT[0], TRANSIENT[-1]):
        _, (done,), requests = serve_and_ask(lambda *_, failure=failure: failure, retries=1)
        assert isinstance(done, EndpointFailed) and "2 attempts" in str(done) and len(requests) == 2


def test_a_server_that_hangs_is_given_up():
    _, (done,), requests = serve_and_ask(lambda *_: 30.0, timeout=0.2, retries=1)
    assert isinstance(done, EndpointFailed) and "no answer within 0.2 s" in str(done)


def test_waits_respect_the_servers_wish_up_to_a_bound(monkeypatch):
    after = []
    monkeypatch.setattr(endpoint, "_wait", lambda state: after.append(state.outcome.exception().after) or 0.0)
    busy = [(429, {"error": "busy"}, {"Retry-After": wish}) for wish in ("7", "Wed, 21 Oct 2026 07:28:00 GMT")]
    _, (done,), _ = serve_and_ask(lambda _, number: busy[number] if number < 2 else answer())
    assert done.text == "Paris" and after == [7.0, 0.0]
    monkeypatch.undo()
    for wish, wait in ((7.0, 7.0), (10**9, 30.0)):
        outcome = SimpleNamespace(exception=lambda wish=wish: endpoint.Transient("busy", wish))
        assert endpoint._wait(SimpleNamespace(outcome=outcome, attempt_number=1)) == wait


def test_a_connection_that_breaks_is_tried_again_and_then_reported():
    async def scenario(server):
        llm = ChatEndpoint(server.url, "tiny", retries=1)
        await llm.connect()
        server.__exit__()
        with pytest.raises(EndpointFailed, match="2 attempts"):
            await llm.complete(CHAT, GREEDY)
        await llm.close()

    asyncio.run(scenario(ChatServer().__enter__()))


def test_no_more_requests_at_a_time_than_allowed():
    async def scenario():
        llm = ChatEndpoint(server.url, "tiny", concurrency=3)
        await asyncio.gather(*[llm.complete(CHAT, GREEDY) for _ in range(12)])
        await llm.close()

    with ChatServer(lambda *_: 0.05) as server:
        asyncio.run(scenario())
    assert server.peak == 3 and len(server.requests) == 12


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
    done = endpoint.answer_of({"choices": [{"message": message, "finish_reason": "length"}]})
    assert (done.text, done.reasoning, done.stop_reason) == (text, reasoning, "length")
    assert (done.prompt_tokens, done.generated_tokens) == (0, 0)  # a server without usage


def test_an_answer_without_end_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr(endpoint, "MAX_BODY", 100_000)
    _, (first, second), _ = serve_and_ask(
        lambda _, number: answer("x" * (100_001 if number else 90_000)), GREEDY, GREEDY, retries=0
    )
    assert len(first.text) == 90_000
    assert isinstance(second, EndpointFailed) and "an answer of more than 100000 bytes" in str(second)


def find(server, **options):
    async def scenario():
        llm = ChatEndpoint(server.url, **options)
        try:
            return await llm.find_model()
        finally:
            await llm.close()

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    ("models", "model", "words"),
    [
        (("a", "b"), None, "^tools.model is not set, and the models of .* are a, b. Remedy: name one"),
        (None, None, "gave status 404; does the URL end in /v1?"),
        (401, "a", "an API key is needed .status 401.. Remedy: set OPENAI_API_KEY"),
        (503, None, "no server answers at tools.endpoint=.*status 503"),
    ],
)
def test_which_model_must_be_clear_before_the_start(models, model, words, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with ChatServer(models=models) as server, pytest.raises(ValueError, match=words):
        find(server, model=model, setting=("tools.endpoint", "tools.model"))


def test_a_server_that_lists_other_models_may_still_have_this_one(capsys):
    with ChatServer(models=("a",)) as server:
        assert find(server, model="b") == "b"
    assert "does not list the model b (it lists a)" in capsys.readouterr().out
    with ChatServer(models=None) as server:
        assert find(server, model="b") == "b"
    with pytest.raises(ValueError, match="(?s)no server answers at url=.*vllm serve"):
        find(server)  # which has ended


def test_connections_open_at_the_first_request_of_each_event_loop():
    with ChatServer() as server:
        llm = ChatEndpoint(server.url)  # outside of any loop

        async def once(close):
            try:
                return (await llm.complete(CHAT, GREEDY)).text
            finally:
                if close:
                    await llm.close()

        # The second loop ends without a close, as a worker's may; after a close, too, the client works again.
        assert [asyncio.run(once(close)) for close in (True, False, True)] == ["Paris"] * 3
        assert llm.model == "tiny" and [body["model"] for body in server.requests] == ["tiny"] * 3


class LateServer(ChatServer):
    """Does not list its models before the third request for them."""

    asked = 0

    async def _models(self, request):
        self.asked += 1
        return web.Response(status=503) if self.asked < 3 else await super()._models(request)


def test_a_call_asks_a_starting_server_again_for_its_model():
    with LateServer() as server:
        llm, (done,) = ask(server.url, model=None)
        assert (done.text, llm.model, server.asked) == ("Paris", "tiny", 3)
    with LateServer() as server:
        _, (done,) = ask(server.url, model=None, retries=1)
        assert isinstance(done, EndpointFailed) and "/models: status 503 (2 attempts)" in str(done)
