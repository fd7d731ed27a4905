"""Which model a server serves, and when connections to it open."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from tests.serving import ChatServer
from tests.tools.chatting import CHAT, GREEDY, ask
from verl_ext.tools.chat import ChatEndpoint, EndpointFailed


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Waits between attempts are real, but short."""
    monkeypatch.setattr("verl_ext.tools.chat.MAX_WAIT", 0.3)


@pytest.mark.parametrize(
    ("models", "model", "words"),
    [
        (("a", "b"), None, "are a, b. Remedy: name one"),
        (None, None, "gave status 404; does the URL end in /v1?"),
        (401, "a", "an API key is needed .status 401.. Remedy: set OPENAI_API_KEY"),
    ],
)
def test_which_model_must_be_clear_before_the_start(models, model, words, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with ChatServer(models=models) as server, pytest.raises(ValueError, match=words):
        ask(server, model=model)


def test_a_server_that_lists_other_models_may_still_have_this_one(capsys):
    with ChatServer(models=("a",)) as server:
        _, (done,) = ask(server, model="b")
        assert done.text == "Paris" and server.requests[0]["model"] == "b"
    assert "does not list the model b (it lists a)" in capsys.readouterr().out
    with ChatServer(models=None) as server:
        assert ask(server, model="b")[1][0].text == "Paris"


def test_nobody_there():
    with ChatServer() as server:
        pass
    with pytest.raises(ValueError, match="(?s)no server answers at url=.*vllm serve"):
        ask(server)
    with pytest.raises(ValueError, match="no server answers at tools.endpoint="):
        ask(server, setting=("tools.endpoint", "tools.model"))


def test_what_the_configuration_calls_them_is_what_errors_name():
    with ChatServer(models=("a", "b")) as server, pytest.raises(ValueError, match="^tools.model is not set, and"):
        ask(server, setting=("tools.endpoint", "tools.model"))


def test_connections_open_at_the_first_request_of_each_event_loop():
    with ChatServer() as server:
        llm = ChatEndpoint(server.url)  # outside of any loop

        async def once(close):
            try:
                return (await llm.complete(CHAT, GREEDY)).text
            finally:
                if close:
                    await llm.close()

        # The first loop ends without a word, as a worker's may; after a close, too, it goes on.
        assert [asyncio.run(once(close)) for close in (True, False, True)] == ["Paris"] * 3
        assert llm.model == "tiny" and [body["model"] for body in server.requests] == ["tiny"] * 3


class LateServer(ChatServer):
    """Does not tell its models before it is asked for the third time."""

    asked = 0

    async def _models(self, request):
        self.asked += 1
        return web.Response(status=503) if self.asked < 3 else await super()._models(request)


def test_a_server_that_is_not_up_yet_is_asked_for_its_model_again():
    """A call in the middle of a run tries again; the check before a start does not wait."""

    async def scenario(retries):
        llm = ChatEndpoint(server.url, retries=retries)
        try:
            return await llm.complete(CHAT, GREEDY), llm.model
        finally:
            await llm.close()

    with LateServer() as server:
        done, model = asyncio.run(scenario(retries=3))
        assert (done.text, model, server.asked) == ("Paris", "tiny", 3)
    with LateServer() as server, pytest.raises(EndpointFailed, match="/models: status 503 .2 attempts."):
        asyncio.run(scenario(retries=1))
    with LateServer() as server, pytest.raises(ValueError, match="no server answers at url=.*status 503"):
        ask(server)
