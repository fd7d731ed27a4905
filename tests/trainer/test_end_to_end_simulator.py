"""ToolPO with simulated tools: a served model plays them, and without the one override they run themselves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.serving import ChatServer, answer, question_of
from tests.trainer.running import entries, lasting, run
from verl_ext.tools.catalogue import load_catalogue
from verl_ext.tools.catalogue.types import CallError
from verl_ext.tools.simulator import simulator
from verl_ext.worlds.tool_chains import Thing, World

pytestmark = pytest.mark.end_to_end

RECIPE = "toolpo_tiny"
SMALL = ["mas.deterministic=true", "trainer.total_training_steps=1", "trainer.val_before_train=false"]
SMALL += ["trainer.test_freq=-1", "trainer.save_freq=-1"]
# How calls were answered: of tools that run themselves nothing is a hit or a miss.
OF_SIMULATION = ("hits", "misses", "recorded", "model_calls", "repairs", "failures")


def asked(body: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
    """Tool, arguments and description of a request to the model that plays tools."""
    tool, call = (json.loads(line.partition(" ")[2]) for line in question_of(body).splitlines())
    return tool["name"], call["arguments"], tool["description"]


def played(world: World) -> Any:
    """What a model that knows the tiny world would answer."""

    def behave(body: dict[str, Any], number: int) -> dict[str, Any]:
        _, arguments, description = asked(body)
        relation, state = description.split(":")
        ((kind, name),) = arguments.items()
        known = world.facts.get(Thing(kind, name), {}).get(relation, {"error": "not found"})
        return answer(json.dumps(known if state == "open" else {"error": state}))

    return behave


def step_of(folder: Path) -> dict[str, Any]:
    """Metrics of the only step, without what depends on the clock."""
    (entry,) = entries(folder, RECIPE)[-1:]
    assert entry["step"] == 1
    return lasting(entry)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory) -> tuple[Path, list[dict[str, Any]]]:
    """A step whose tools a server plays, and what the server was asked."""
    folder = tmp_path_factory.mktemp("simulated")
    with ChatServer(played(World(0))) as server:
        endpoint = f"mas.tools.tool_call.backend.endpoint={server.url}"
        run(folder, *SMALL, "+base=simulated", endpoint, recipe=RECIPE)
        return folder, server.requests


def test_it_trains_on_what_a_model_plays(simulated):
    folder, requests = simulated
    step = step_of(folder)
    assert step["actor/grad_norm"] > 0 and step["system/tool_calls"] > 0 and step["system/tool_failures"] == 0
    called = [json.dumps(asked(body)[:2]) for body in requests]
    assert 0 < len(called) == len(set(called)) <= step["system/tool_calls"] * 64, "each call was asked for once"
    counts = {name.rpartition("/")[2]: n for name, n in step.items() if name.startswith("tools/tool_call/")}
    assert counts["model_calls"] == len(called) and counts["failures"] == counts["recorded"] == 0
    assert counts["answered"] + counts["tool_error"] == counts["hits"] + counts["misses"] >= len(called)
    assert counts["tool_error"] > 0, "a played tool can fail"


def test_what_was_played_is_a_recording(simulated):
    """The next run may replay it: no model, the same answers."""
    folder, requests = simulated
    catalogue = load_catalogue([{"kind": "json", "path": str(folder / "data" / "tiny_tools" / "tools.jsonl")}])
    behave = played(World(0))

    async def replayed() -> None:
        recording = simulator(mode="replay", cache=str(folder / "data" / "simulator.db"))
        assert recording.cache.info()["results"] == len(requests)
        for number, body in enumerate(requests):
            name, arguments, _ = asked(body)
            said = behave(body, number)["choices"][0]["message"]["content"]
            try:
                assert await recording(catalogue[name], arguments) == json.loads(said)
            except CallError as error:
                assert json.loads(said) == {"error": str(error)}
        assert recording.counters.as_dict()["hits"] == len(requests)
        await recording.close()

    asyncio.run(replayed())


def test_without_the_override_the_tools_run_and_a_right_simulation_changes_nothing(simulated, tmp_path):
    """The ablation "w/o Tool Simulation". The model played every tool right, so the same tokens train alike."""
    run(tmp_path, *SMALL, recipe=RECIPE)
    assert not (tmp_path / "data" / "simulator.db").exists()
    direct, other = step_of(tmp_path), step_of(simulated[0])
    apart = {name for name in direct.keys() | other.keys() if direct.get(name) != other.get(name)}
    assert apart == {f"tools/tool_call/{name}" for name in OF_SIMULATION}
    assert direct["system/failed_calls"] > 0, "errors of tools were among the answers"
