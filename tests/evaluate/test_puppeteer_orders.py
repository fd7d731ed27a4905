"""What the learned orchestrator is compared with can be evaluated without training."""

from __future__ import annotations

import json

import pytest

from verl_ext.evaluate.__main__ import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("orders")


def evaluated(folder, monkeypatch, name, *overrides, questions=8):
    """(means, agents that were called) of the first questions."""
    monkeypatch.chdir(folder)
    few = f"evaluate.max_questions={questions}"
    assert main(["+recipe=puppeteer_tiny", f"evaluate.output=runs/{name}", few, *overrides]) == 0
    (source,) = json.loads((folder / "runs" / name / "results.json").read_text())["data"].values()
    assert source["answered"] == questions and source["failed"] == {}
    return {key: value["mean"] for key, value in source["metrics"].items()}, source["agents"]


def test_an_oracle(folder, monkeypatch):
    """Two of eight questions, their kinds in turn, take two agents; all others one."""
    means, agents = evaluated(folder, monkeypatch, "oracle", "mas.workflow.orchestration=oracle")
    assert means["agents"] == 10 / 8 and means["terminated"] == 1 and means["accuracy"] >= 0.75
    assert set(agents) == {"run_python", "web_search", "reasoning"}


def test_a_fixed_order(folder, monkeypatch):
    order = ["mas.workflow.orchestration=fixed", "mas.workflow.order=[web_search,run_python]"]
    means, agents = evaluated(folder, monkeypatch, "fixed", *order)
    assert means["agents"] == 2 and {name: agent["calls"] for name, agent in agents.items()} == {
        "web_search": 8,
        "run_python": 8,
    }


def test_chance_is_the_same_each_time(folder, monkeypatch):
    random = "mas.workflow.orchestration=random"
    first = evaluated(folder, monkeypatch, "random1", random, questions=16)
    again = evaluated(folder, monkeypatch, "random2", random, "evaluate.concurrency=3", questions=16)
    assert first[0] == again[0] and "orchestrator" not in first[1] and len(first[1]) >= 6


def test_an_order_that_is_none_says_what_would_be(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert main(["+recipe=puppeteer_tiny", "evaluate.output=runs/none", "mas.workflow.orchestration=fixed"]) == 2
    assert (
        "mas.workflow.order=[] must be from 1 to 4 (mas.workflow.depth) agents of the pool" in capsys.readouterr().err
    )
