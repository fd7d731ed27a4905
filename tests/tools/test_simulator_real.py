"""The public data sets, where they are there: every tool can be played, every recorded call is served."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.tools.simulating import fill, simulate
from verl_ext.tools.catalogue import Recorded, ToolSpec, load_catalogue
from verl_ext.tools.catalogue.types import CallError
from verl_ext.tools.simulator.prompt import MAX_PART, messages

DATA = Path(__file__).parents[3] / "shared" / "data" / "tools"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"the public data sets are not at {DATA}")

SOURCES = [
    {"kind": "openapi", "path": str(DATA / "restbench/tmdb_oas.json"), "prefix": "tmdb "},
    {"kind": "openapi", "path": str(DATA / "restbench/spotify_oas.json"), "prefix": "spotify "},
    {"kind": "toolbench", "path": str(DATA / "toolbench/tool_catalogue.jsonl"), "prefix": "tb "},
    {"kind": "api_bank", "path": str(DATA / "api_bank/tool_catalogue.jsonl"), "prefix": "bank "},
]


@pytest.fixture(scope="module")
def catalogue():
    return load_catalogue(SOURCES)


def test_every_prompt_is_two_lines_of_bounded_data(catalogue):
    assert len(catalogue) > 2600
    for spec in catalogue.values():
        content = messages(spec, "{}")[1]["content"]
        tool, call = content.split("\n")
        shown = json.loads(tool.removeprefix("TOOL "))
        assert shown["name"] == spec.name and json.loads(call.removeprefix("CALL ")) == {"arguments": {}}
        assert "<" not in content and len(tool) < 5 * MAX_PART
        for part in ("description", "parameters"):
            assert shown.get(part, "") == (getattr(spec, part) or "") or "(cut after" in shown[part]


def test_recorded_calls_of_api_bank_are_served_before_anything_is_asked(tmp_path):
    recorded = Recorded.load(str(DATA / "api_bank/lv1_lv2_dialogues.jsonl"))
    specs = {name: ToolSpec(name, "") for name in recorded.tools()}
    fill(tmp_path / "c.db", [1])
    simulator = simulate(None, tmp_path / "c.db", mode="replay", recorded=recorded)
    turns = [
        turn
        for line in (DATA / "api_bank/lv1_lv2_dialogues.jsonl").read_text().splitlines()
        for turn in json.loads(line)["turns"]
        if turn["role"] == "API"
    ]

    async def run():
        calls = [(specs[turn["api_name"]], turn["param_dict"]) for turn in turns]
        found = await asyncio.gather(*[simulator(*call) for call in calls], return_exceptions=True)
        missed = await asyncio.gather(simulator(calls[0][0], {"never": "recorded"}), return_exceptions=True)
        await simulator.close()
        return found, missed[0]

    found, missed = asyncio.run(run())
    assert len(turns) > 300 and simulator.counters.recorded == len(turns)
    assert missed.kind == "not_recorded"
    same = 0
    for turn, result in zip(turns, found, strict=True):
        said = turn["result"]
        if said.get("exception") is None and not isinstance(result, CallError):
            same += result == said["output"]
    assert same > 0.9 * len(turns)  # the others were recorded twice, differently
