"""The web's tools off, played by a model, and live search by a real retrieval server."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.serving import ChatServer, answer, question_of
from tests.tools.requesting import running
from verl_ext.tools import ToolError, ToolRefused, simulator_server
from verl_ext.tools.catalogue import load_catalogue
from verl_ext.tools.retrieval import Passage, build_index, load_index
from verl_ext.tools.retrieval_server import create_app
from verl_ext.tools.simulator import simulator
from verl_ext.tools.web import TOOLS, access_website, search_arxiv, web_search

FACTORIES = {"access_website": access_website, "search_arxiv": search_arxiv, "web_search": web_search}
CALLS = {
    "access_website": {"url": "https://example.org/"},
    "search_arxiv": {"query": "agents"},
    "web_search": {"queries": ["agents"]},
}
SIMULATOR = "verl_ext.tools.simulator.simulator"


def played(body, number):
    """What a model would say: a page for an address, a list of one passage for a search."""
    tool, call = (json.loads(line.partition(" ")[2]) for line in question_of(body).splitlines())
    (said,) = call["arguments"].values()
    page = tool["returns"]["type"] == "string"
    return answer(json.dumps(f"page {number} of {said}" if page else [{"title": "T", "text": f"{number}: {said}"}]))


def call(tool, **arguments):
    """The answer to one call; closes the tool."""

    async def scene():
        try:
            return await tool(**arguments)
        finally:
            await tool.close()

    return asyncio.run(scene())


@pytest.mark.parametrize("name", FACTORIES)
def test_off_by_default_and_said_so_at_once(name):
    tool = FACTORIES[name]()
    FACTORIES[name].preflight()
    with pytest.raises(ToolRefused, match=f"{name} is off. To turn it on: mas.tools.{name}.mode=simulated, or live"):
        call(tool, **CALLS[name])
    assert tool.counts() == {"answered": 0, "refused": 1, "failed": 0} and FACTORIES[name].identity() == {"mode": "off"}


@pytest.mark.parametrize("name", FACTORIES)
def test_a_model_plays_it_and_a_replay_needs_none(name, tmp_path):
    with ChatServer(played) as server:
        settings = {"cache": str(tmp_path / "c.db"), "endpoint": server.url}
        section = {"mode": "simulated", "backend": {"_target_": SIMULATOR, **settings}}
        FACTORIES[name].preflight(**section)
        assert FACTORIES[name].identity(**section)["backend"]["settings"]["mode"] == "record"
        tool = FACTORIES[name](mode="simulated", backend=simulator(**settings))
        first = call(tool, **CALLS[name])
        assert tool.counts()["answered"] == tool.counts()["misses"] == 1 and len(server.requests) == 1
    (said,) = CALLS[name].values()
    assert first == (f"page 0 of {said}" if name == "access_website" else [{"title": "T", "text": f"0: {said}"}])
    replay = FACTORIES[name](mode="simulated", backend=simulator(mode="replay", cache=str(tmp_path / "c.db")))
    assert call(replay, **CALLS[name]) == first and replay.counts()["hits"] == 1
    other = FACTORIES[name](mode="simulated", backend=simulator(mode="replay", cache=str(tmp_path / "c.db")))
    unknown = {key: [f"{value[0]}!"] if isinstance(value, list) else f"{value}!" for key, value in CALLS[name].items()}
    with pytest.raises(ToolRefused, match=f"{name}: nothing is recorded of this call"):
        call(other, **unknown)


def test_a_played_failure_is_the_tools(tmp_path):
    with ChatServer(lambda body, number: answer('{"error": "404 Not Found"}')) as server:
        backend = simulator(cache=str(tmp_path / "c.db"), endpoint=server.url)
        with pytest.raises(ToolRefused, match="access_website: 404 Not Found"):
            call(access_website(mode="simulated", backend=backend), url="https://example.org/")
    with ChatServer(lambda body, number: answer("I cannot do that.")) as server:
        backend = simulator(cache=str(tmp_path / "c.db"), endpoint=server.url)
        with pytest.raises(ToolError, match="no JSON in two answers") as error:
            call(access_website(mode="simulated", backend=backend), url="https://example.org/else")
        assert not isinstance(error.value, ToolRefused)


def test_the_shared_server_plays_them(tmp_path):
    catalogue = load_catalogue([{"kind": "json", "path": str(TOOLS)}])
    with ChatServer(played) as model:
        shared = simulator(cache=str(tmp_path / "c.db"), endpoint=model.url)
        with running(simulator_server.create_app(shared, catalogue)) as url:
            for name, factory in FACTORIES.items():
                factory.preflight(mode="simulated", backend={"_target_": SIMULATOR, "url": url})
                assert call(factory(mode="simulated", backend=simulator(url=url)), **CALLS[name])
        assert len(model.requests) == 3


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("access_website", {"url": "x" * 3000}, "url: 'xxx"),
        ("search_arxiv", {"query": ""}, "non-empty|too short"),
        ("web_search", {"queries": ["a"] * 11}, "too long|expected at most"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(name, arguments, words):
    with pytest.raises(ToolRefused, match=words):
        call(FACTORIES[name](mode="simulated", backend=lambda *_: pytest.fail("asked")), **arguments)


def test_search_goes_to_the_retrieval_server(tmp_path):
    build_index([Passage(str(i), f"T{i}", f"word{i} common") for i in range(9)], tmp_path / "index")
    with running(create_app(load_index(tmp_path / "index"))) as url:
        web_search.preflight(mode="live", url=url)
        found = call(web_search(mode="live", url=url, max_documents=2), queries=["word4", "word7"])
        assert [one["title"] for one in found] == ["T4", "T7"] and "word4" in found[0]["text"]
    with pytest.raises(ToolError, match="no answer from the retrieval server"):
        web_search.preflight(mode="live", url=url)
    web_search.preflight(mode="live", url=url, check=False)
    places = [web_search.identity(mode="live", url=where) for where in (url, "http://other:1")]
    assert places[0] == places[1] and places[0]["mode"] == "live"
    assert web_search.identity(mode="live", url=url, max_chars=100) != places[0]
