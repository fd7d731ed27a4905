"""The puppeteer's settings: what is refused, and which agents there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from verl_ext.recipe.puppeteer import Puppeteer, prompts
from verl_ext.recipe.puppeteer.puppets import POOL


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompts": "short"}, "prompts='short' is unknown; allowed: faithful, tiny"),
        ({"pool": ["planing"]}, r"pool=\['planing'\] must be different ones of planning"),
        ({"pool": ["planning", "planning"]}, "must be different ones"),
        ({"pool": []}, "must be different ones"),
        ({"depth": 0}, "depth=0 must be at least 1"),
        ({"token_budget": -1}, "token_budget=-1 must be at least 0"),
        ({"max_result_chars": 0}, "max_result_chars=0 must be at least 1"),
        ({"orchestration": "clever"}, "orchestration='clever' is unknown; allowed: learned, random, fixed, oracle"),
        ({"order": ["planning"]}, "is for orchestration=fixed, given learned"),
        ({"orchestration": "fixed"}, "must be from 1 to 4 .mas.workflow.depth. agents of the pool: planning, "),
        ({"orchestration": "fixed", "order": ["critic"]}, "must be from 1 to 4"),
        ({"orchestration": "fixed", "order": ["planning"] * 5}, "must be from 1 to 4"),
        ({"models": {"q": {"cost": float("inf")}}}, "models.q.cost=inf must be at least 0, and finite"),
        ({"models": {"q": {"cost": "2"}}}, "models.q.cost='2' must be at least 0"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        Puppeteer(**options)


def test_what_is_there_and_what_is_left_out():
    system = Puppeteer(pool=["planning"])
    assert list(system.agents) == ["orchestrator", "planning"] and system.trained_agents == ["orchestrator"]
    assert set(system.left_out) == {*POOL} - {"planning"}
    assert Puppeteer(pool=["planning"], train_agents=True).trained_agents == ["orchestrator", "planning"]
    assert Puppeteer(orchestration="random").trained_agents == []
    assert Puppeteer(pool=["planning", "read_file", "run_python"]).needs == ["read_file", "run_python"]
    assert Puppeteer(pool=["planning"]).needs == []


def test_the_documentation_sets_every_puppets_prompt_beside_its_figure():
    text = (Path(__file__).parents[2] / "docs" / "puppeteer.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| expert (.*)$", text, re.MULTILINE))
    assert set(rows) == set(POOL) == set(prompts.ROLE) == set(prompts.ACTION)
    assert {name for name, row in rows.items() if "cue:" in row} == {n for n, (_, cue) in prompts.ACTION.items() if cue}
