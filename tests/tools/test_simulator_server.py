"""The simulator's server as a real process, and what its client makes of its answers."""

from __future__ import annotations

import asyncio
import json
import threading
from functools import partial

import pytest

from tests.serving import ChatServer, answer
from tests.tools import requesting
from tests.tools.requesting import running, stop
from tests.tools.simulating import MOVIE, ask, counted, fill, rows, simulate
from verl_ext.tools import ToolError
from verl_ext.tools.catalogue import Catalogue, ToolSpec, load_catalogue
from verl_ext.tools.catalogue.types import CallError
from verl_ext.tools.simulator import HttpSimulator
from verl_ext.tools.simulator_server import create_app, main, sources_of

NAME, CALL = MOVIE.name, {"query": "Titanic"}


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    path = tmp_path_factory.mktemp("films") / "films.jsonl"
    path.write_text(json.dumps(MOVIE.shown()))
    return path


@pytest.fixture(scope="module")
def spec(films):
    return load_catalogue([{"kind": "json", "path": str(films)}])[NAME]


def start(films, *arguments):
    says = r"use it in a recipe: mas\.tools\.tool_call\.backend\.url=(http://\S+) "
    return requesting.start("verl_ext.tools.simulator_server", "--catalogue", f"json:{films}", *arguments, says=says)


post = partial(requesting.post, path="/call")


@pytest.fixture(scope="module")
def model():
    with ChatServer(lambda body, number: answer(json.dumps({"request": number, "é": "<b>"}))) as server:
        yield server


@pytest.fixture(scope="module")
def url(films, model, tmp_path_factory):
    cache = tmp_path_factory.mktemp("server") / "c.db"
    process, address = start(films, "--cache", cache, "--endpoint", model.url)
    yield address
    stop(process)


def test_a_call_and_its_repetition(url, spec, model):
    before = len(model.requests)
    status, first = post(url, {"tool": NAME, "arguments": CALL})
    assert (status, first) == (200, {"result": {"request": before, "é": "<b>"}, "source": "model"})
    assert post(url, {"tool": NAME, "arguments": CALL, "version": spec.version})[1] == {**first, "source": "cache"}
    ((found,), client) = ask(url, spec, CALL)
    assert found == first["result"] and client.counters.as_dict()["hits"] == 1
    health = HttpSimulator(url).health()
    assert (health["mode"], health["model"], health["tools"], health["waiting"]) == ("record", "tiny", 1, 0)
    assert health["counters"]["hits"] == 2 and health["cache"]["results"] == 1
    assert health["catalogue"] == Catalogue([spec]).version


def test_clients_in_many_processes_ask_the_model_once(url, spec, model):
    """32 clients with connections of their own, all calls at once."""
    before = len(model.requests)

    async def scenario():
        clients = [HttpSimulator(url) for _ in range(32)]
        calls = [clients[i](spec, {"query": f"film {i % 5}", "page": j + 1}) for i in range(32) for j in range(3)]
        found = await asyncio.gather(*calls)
        await asyncio.gather(*(client.close() for client in clients))
        return found, sum(client.counters.misses + client.counters.hits for client in clients)

    found, answered = asyncio.run(scenario())
    assert len(model.requests) - before == 15 and answered == 96
    for place in range(15):
        assert found[place] == found[place + 15] == found[place + 75]
    assert len({json.dumps(result) for result in found}) == 15


def test_arguments_that_do_not_fit_are_the_agents_to_mend(url, spec, model):
    before = len(model.requests)
    found, client = ask(url, spec, {}, {"query": float("nan")}, {"query": "\ud800"})
    for error, words in zip(found, ("'query' is a required property", "are not JSON", "half of a char"), strict=True):
        assert isinstance(error, CallError) and error.kind == "bad_arguments" and words in str(error)
    assert client.counters.failures == 0 and len(model.requests) == before


@pytest.mark.parametrize(
    ("body", "status", "kind", "words"),
    [
        ({"tool": NAME, "arguments": {}}, 422, "bad_arguments", "required property"),
        ({"tool": NAME, "arguments": 7}, 422, "bad_arguments", "must be an object, given int"),
        (b'{"tool": "GET /search/movie", "arguments": {"query": NaN}}', 422, "bad_arguments", "not JSON"),
        ({"tool": NAME, "arguments": {"query": "x" * 33_000}}, 422, "bad_arguments", "allowed are 32768"),
        ({"tool": "nothing \x1b", "arguments": {}}, 404, "unknown_tool", "there is no tool 'nothing \\x1b'"),
        ({"tool": NAME, "arguments": CALL, "version": "0" * 16}, 409, "other_version", "is another version here"),
        ({"arguments": {}}, 422, "malformed", "tool: Field required; expected"),
        ({"tool": NAME, "args": {}}, 422, "malformed", "args: Extra inputs are not permitted"),
        (b"{broken", 422, "malformed", "Invalid JSON"),
    ],
)
def test_requests_that_are_refused_say_why(url, body, status, kind, words):
    found, said = post(url, body)
    assert (found, said["kind"]) == (status, kind) and words in said["error"] and len(said["error"]) < 5000


def test_another_catalogue_here_is_the_tools_failure_with_a_remedy(url, spec):
    changed = ToolSpec(NAME, "Something else.", spec.parameters)
    ((found, other), client) = ask(url, changed, CALL, {"query": "Alien"})
    assert isinstance(found, ToolError) and "Remedy: start the server with the catalogue of the run" in str(found)
    ((unknown,), _) = ask(url, ToolSpec("elsewhere", ""), {})
    assert isinstance(unknown, ToolError) and "there is no tool 'elsewhere' in the server's catalogue" in str(unknown)
    assert client.counters.failures == 2


def test_replay_and_results_of_real_calls(films, spec, tmp_path):
    row = {
        "turns": [
            {"role": "API", "api_name": NAME, "param_dict": call, "result": result}
            for call, result in (
                ({"query": "real"}, {"output": {"title": "é"}, "exception": None}),
                ({"query": "fails"}, {"output": None, "exception": "no such film"}),
            )
        ]
    }
    (tmp_path / "recorded.jsonl").write_text(json.dumps(row) + "\n")
    fill(tmp_path / "c.db", [1])
    process, url = start(
        films, "--mode", "replay", "--cache", tmp_path / "c.db", "--recorded", tmp_path / "recorded.jsonl"
    )
    try:
        (found, client) = ask(url, spec, CALL, {"query": "real"}, {"query": "fails"})
        assert found[0].kind == "not_recorded" and "nothing is recorded of this call" in str(found[0])
        assert found[1] == {"title": "é"} and isinstance(found[2], CallError) and str(found[2]) == "no such film"
        assert counted(client) == {"recorded": 2, "misses": 1}
        assert post(url, {"tool": NAME, "arguments": CALL}) == (
            404,
            {"error": f"nothing is recorded of this call of {NAME}", "kind": "not_recorded"},
        )
        health = HttpSimulator(url).health()
        assert (health["mode"], health["model"], health["cache"]["results"]) == ("replay", None, 1)
    finally:
        assert stop(process).endswith("stopped\n") and process.returncode == 0


def test_a_model_that_fails_is_the_tools_failure_and_not_asked_by_the_client_again(spec, tmp_path):
    with ChatServer(lambda body, number: answer("Sorry.")) as model:
        with running(create_app(simulate(model, tmp_path / "c.db"), Catalogue([spec]))) as url:
            ((found,), client) = ask(url, spec, CALL, attempts=5)
            assert isinstance(found, ToolError) and "no JSON in two answers" in str(found)
            assert len(model.requests) == 2 and client.counters.failures == 1
            assert post(url, {"tool": NAME, "arguments": CALL})[0] == 424


def test_a_call_whose_client_has_gone_is_there_at_the_next_attempt(spec, tmp_path):
    free = threading.Event()
    with ChatServer(lambda body, number: free.wait(300) and answer("1")) as model:
        with running(create_app(simulate(model, tmp_path / "c.db"), Catalogue([spec]))) as url:
            ((gone,), _) = ask(url, spec, CALL, timeout_s=0.2, attempts=1)
            assert isinstance(gone, ToolError) and "within 0.2 s" in str(gone)
            free.set()
            ((found,), client) = ask(url, spec, CALL)
            assert found == 1 and len(model.requests) == 1 and client.counters.hits + client.counters.misses == 1
    assert len(rows(tmp_path / "c.db")) == 1


def test_start_errors_are_one_line_with_the_remedy(films, model, tmp_path, capsys):
    (tmp_path / "garbage.db").write_bytes(b"x" * 5000)
    (tmp_path / "bad.yaml").write_text("kind: openapi")
    good = ["--catalogue", f"json:{films}", "--cache", str(tmp_path / "c.db"), "--endpoint", model.url]
    cases = [
        (["--cache", str(tmp_path / "garbage.db")], "is damaged, or no cache"),
        (["--mode", "replay", "--cache", str(tmp_path / "none.db")], "there is no cache at"),
        (["--endpoint", "http://127.0.0.1:1/v1"], "no server answers at endpoint=http://127.0.0.1:1/v1"),
        (["--catalogue", str(tmp_path / "bad.yaml")], "expected a list of sources"),
        (["--catalogue", "swagger:x"], "given kind 'swagger'"),
        (["--catalogue", str(tmp_path / "none.yaml")], "neither KIND:FILE nor a YAML file"),
    ]
    for arguments, words in cases:
        assert main([*good, *arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and words in error
    assert not (tmp_path / "c.db").exists()  # a start that fails makes nothing


def test_catalogues_of_a_command_line(tmp_path):
    (tmp_path / "tools.yaml").write_text(
        "- {kind: toolbench, path: t.jsonl, prefix: 'tb '}\n- {kind: toolhop, path: h.jsonl}\n"
    )
    assert sources_of(["openapi:C:/a.json", str(tmp_path / "tools.yaml")]) == [
        {"kind": "openapi", "path": "C:/a.json"},
        {"kind": "toolbench", "path": "t.jsonl", "prefix": "tb "},
        {"kind": "toolhop", "path": "h.jsonl"},
    ]
