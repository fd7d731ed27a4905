"""The simulator in a configuration."""

from __future__ import annotations

import asyncio
import shutil

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from tests.serving import ChatServer, answer
from tests.tools.simulating import fill, play
from verl_ext.tools import ToolError
from verl_ext.tools.simulator import HttpSimulator, Simulator, simulator
from verl_ext.tools.simulator.prompt import PROMPT_VERSION

CALL = {"query": "Titanic"}


def test_hydra_makes_one_that_works(tmp_path):
    with ChatServer(lambda body, number: answer("1")) as server:
        section = OmegaConf.create(
            {
                "_target_": "verl_ext.tools.simulator.simulator",
                "cache": str(tmp_path / "c.db"),
                "endpoint": server.url,
                "template": {"enable_thinking": False},
                "max_tokens": 55,
                "mode": None,
            }
        )
        made = instantiate(section)
        assert isinstance(made, Simulator) and made.mode == "record"
        assert play(made, CALL) == [1]
        assert server.requests[0]["chat_template_kwargs"] == {"enable_thinking": False}
        assert server.requests[0]["max_tokens"] == 55
    replay = simulator(mode="replay", cache=str(tmp_path / "c.db"), endpoint="http://127.0.0.1:1/v1")
    assert replay.chat is None and not replay.cache.writable and play(replay, CALL) == [1]
    live = simulator(mode="live", cache=str(tmp_path / "other.db"), endpoint="http://127.0.0.1:1/v1")
    asyncio.run(live.close())
    assert live.cache is None and not (tmp_path / "other.db").exists()


def test_a_url_makes_a_client():
    made = simulator(url="http://localhost:8200", attempts=5, timeout_s=9)
    assert isinstance(made, HttpSimulator) and (made._attempts, made._timeout_s) == (5, 9)
    assert simulator(url="http://localhost:8200")._timeout_s == 28.0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"url": "a:1"}, "simulator's server url: given 'a:1', expected http://HOST:PORT"),
        ({"mode": "live", "endpoint": "http://a/v1", "recorded": 3}, "recorded must have get.*given int"),
    ],
)
def test_wrong_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        simulator(**settings)


def test_preflight_says_what_would_not_work_and_makes_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "file").write_text("x")
    (tmp_path / "bad.db").write_bytes(b"x" * 5000)
    fill(tmp_path / "good.db", [1])
    new = str(tmp_path / "new" / "c.db")
    with ChatServer() as server, ChatServer(models=("a", "b")) as two, ChatServer(models=401) as closed:
        simulator.preflight(cache=new, endpoint=server.url)
        simulator.preflight(cache=str(tmp_path / "good.db"), endpoint=server.url, model="tiny")
        simulator.preflight(cache=str(tmp_path / "good.db"), mode="replay", endpoint="http://127.0.0.1:1/v1")
        simulator.preflight(mode="live", cache=str(tmp_path / "bad.db"), endpoint=server.url)
        for settings, words in (
            (
                {"cache": new, "endpoint": "http://127.0.0.1:1/v1"},
                "no server answers at endpoint=http://127.0.0.1:1/v1",
            ),
            ({"cache": new, "endpoint": two.url}, "model is not set, and the models of .* are a, b"),
            ({"cache": new, "endpoint": closed.url}, "an API key is needed"),
            ({"cache": str(tmp_path / "bad.db"), "endpoint": server.url}, "is damaged, or no cache"),
            (
                {"cache": str(tmp_path / "file" / "c.db"), "endpoint": server.url},
                "cannot be made: .*file cannot be written",
            ),
            ({"cache": str(tmp_path / "none.db"), "mode": "replay"}, "there is no cache at"),
        ):
            with pytest.raises(ValueError, match=words):
                simulator.preflight(**settings)
    made = {path.name for path in tmp_path.iterdir()} - {"bad.db", "file", "good.db"}
    assert made <= {"good.db-shm", "good.db-wal"}  # SQLite's own, of whoever reads

    async def inside_a_running_loop():
        with ChatServer() as server:
            simulator.preflight(cache=new, endpoint=server.url)

    asyncio.run(inside_a_running_loop())


def test_preflight_asks_a_simulators_server_unless_it_shall_not(tmp_path):
    simulator.preflight(endpoint="http://127.0.0.1:1/v1", cache=str(tmp_path / "new.db"), check=False)
    simulator.preflight(url="http://127.0.0.1:1", check=False)
    with pytest.raises(ToolError, match="no answer from the simulator's server"):
        simulator.preflight(url="http://127.0.0.1:1", attempts=1)
    with ChatServer() as server, pytest.raises(ToolError, match="/health refused the request with status 404"):
        simulator.preflight(url=server.url.removesuffix("/v1"))


def test_what_answers_depend_on(tmp_path):
    fill(tmp_path / "a.db", [1, 2])
    shutil.copy(tmp_path / "a.db", tmp_path / "moved.db")
    fill(tmp_path / "other.db", [1])

    def identity(name, **settings):
        return simulator.identity(mode="replay", cache=str(tmp_path / name), **settings)

    assert identity("a.db") == identity("moved.db", endpoint="http://a/v1", concurrency=3) != identity("other.db")
    recorded = {"cache": "c.db", "endpoint": "http://a/v1", "model": "m"}
    assert simulator.identity(**recorded) == simulator.identity(**{**recorded, "endpoint": "http://b/v1", "retries": 9})
    assert simulator.identity(**recorded)["prompt"] == PROMPT_VERSION
    for other in ({"model": "n"}, {"max_tokens": 9}, {"template": {"enable_thinking": False}}, {"mode": "live"}):
        assert simulator.identity(**{**recorded, **other}) != simulator.identity(**recorded)
    assert simulator.identity(url="http://a:1") == simulator.identity(url="http://b:2") == {}
