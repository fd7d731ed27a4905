"""The public data sets, where they are there: every tool can be played, every recorded call is served."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from verl_ext.tools.catalogue import load_catalogue
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
