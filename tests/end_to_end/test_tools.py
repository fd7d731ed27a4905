"""ToolPO with an adapter per agent: tools that a served model simulates or that run themselves, and memory folding.

The two runs differ in one override. The auxiliary role does not train, so the base model answers for it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.running import entries, lasting, run, seen, steps
from tests.serving import ChatServer, answer, question_of
from verl_ext.tools.catalogue import load_catalogue
from verl_ext.tools.catalogue.types import CallError
from verl_ext.tools.simulator import simulator
from verl_ext.worlds.tool_chains import Thing, World

pytestmark = pytest.mark.slow

RECIPE = "toolpo_tiny"
SETTINGS = ["mas.policy=per_agent_lora", "mas.workflow._target_=tests.end_to_end.watched.Tools"]
SETTINGS += ["mas.deterministic=true", "trainer.val_before_train=false", "trainer.test_freq=-1"]
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


def first_step(folder: Path) -> dict[str, Any]:
    """Metrics of the first step without those that depend on the clock."""
    entry = entries(folder, RECIPE)[0]
    assert entry["step"] == 1
    return lasting(entry)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory) -> tuple[Path, list[dict[str, Any]]]:
    """One step whose tools a server simulates, and the requests that the server got."""
    folder = tmp_path_factory.mktemp("simulated")
    with ChatServer(played(World(0))) as server:
        endpoint = f"mas.tools.tool_call.backend.endpoint={server.url}"
        run(folder, *SETTINGS, "+base=simulated", endpoint, "trainer.total_training_steps=1", recipe=RECIPE)
        return folder, server.requests


@pytest.fixture(scope="module")
def direct(tmp_path_factory) -> Path:
    """Two steps whose tools run themselves."""
    folder = tmp_path_factory.mktemp("direct")
    run(folder, *SETTINGS, "trainer.total_training_steps=2", recipe=RECIPE)
    return folder


def test_it_trains_on_what_a_model_plays(simulated):
    folder, requests = simulated
    step = first_step(folder)
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


def test_without_the_override_the_tools_run_and_a_right_simulation_changes_nothing(simulated, direct):
    """The ablation "w/o Tool Simulation". The model simulated every tool right, so the same tokens train alike."""
    assert not (direct / "data" / "simulator.db").exists()
    one, other = first_step(direct), first_step(simulated[0])
    apart = {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
    assert apart == {f"tools/tool_call/{name}" for name in OF_SIMULATION}
    assert one["system/failed_calls"] > 0, "errors of tools were among the answers"


def test_a_role_that_does_not_train_has_no_adapter(direct):
    for metrics in steps(direct, RECIPE):
        assert metrics["adapters/agent/grad_norm"] > 0 and metrics["agents/auxiliary/calls"] > 0
        assert metrics["agents/auxiliary/failed"] == 0
        assert metrics["agents/agent/failed"] < 0.05, "only calls for which a full window has no room"
    record = direct / "runs" / RECIPE / "global_step_2" / "actor" / "adapters.json"
    assert json.loads(record.read_text())["names"] == ["agent"]


def test_folded_trajectories_are_several_rows(direct):
    """Eight tasks of one to three calls, eight trajectories each: tasks of three do not fit a window."""
    for metrics, watched in zip(steps(direct, RECIPE), seen(direct, RECIPE), strict=True):
        rows = list(watched["rows"].values())
        assert metrics["update/rows"] == len(rows) and metrics["actor/grad_norm"] > 0
        windows = Counter(row["trajectory"] for row in rows)
        folds = {row["trajectory"]: row["metrics"]["folds"] for row in rows}
        assert len(windows) == 64 and windows == {name: 1 + number for name, number in folds.items()}
        assert metrics["system/folds"] == pytest.approx(sum(folds.values()) / 64) and sum(folds.values()) > 0
        assert {row["agent"] for row in rows} == {"agent"}
        # Eq. 8: the rows of a trajectory are summed up, so a row of N weighs N / 64.
        assert metrics["update/weight_max"] == metrics["update/weight_min"] == pytest.approx(len(rows) / 64)
        check_actions(rows)


def check_actions(rows: list[dict[str, Any]]) -> None:
    """Tokens of actions lie within outputs of the agent, at most one action in each, one for each fold and call."""
    for row in rows:
        assert row["response_len"] <= 128
        spans = [(first, stop) for _, first, stop in row["calls"]]
        assert row["calls"] and all(first < stop for first, stop in spans)
        for first, stop in row["actions"]:
            assert any(a <= first < stop <= b for a, b in spans)
    counts = {row["trajectory"]: row["metrics"] for row in rows}.values()
    least = sum(one["tool_calls"] + one["folds"] + one["refused_folds"] for one in counts)
    more = sum(one["broken_actions"] + one["limit_tokens"] + one["limit_folds"] for one in counts)
    assert least <= sum(len(row["actions"]) for row in rows) <= least + more
