"""What the learned orchestrator is compared with can be evaluated without training."""

from __future__ import annotations

import json

import pytest

from verl_ext.evaluate.__main__ import main


@pytest.fixture
def evaluated(tmp_path, monkeypatch):
    """(means, agents that were called) of the first questions."""
    monkeypatch.chdir(tmp_path)

    def evaluate(name, orchestration, *overrides, questions=8):
        given = [f"evaluate.output=runs/{name}", f"evaluate.max_questions={questions}"]
        assert main(["+recipe=puppeteer_tiny", *given, f"mas.workflow.orchestration={orchestration}", *overrides]) == 0
        (source,) = json.loads((tmp_path / "runs" / name / "results.json").read_text())["data"].values()
        assert source["answered"] == questions and source["failed"] == {}
        return {key: value["mean"] for key, value in source["metrics"].items()}, source["agents"]

    return evaluate


def test_an_oracle(evaluated):
    """Two of eight questions, their kinds in turn, take two agents; all others one."""
    means, agents = evaluated("oracle", "oracle")
    assert means["agents"] == 10 / 8 and means["terminated"] == 1 and means["accuracy"] >= 0.75
    assert set(agents) == {"run_python", "web_search", "reasoning"}


def test_chance_is_the_same_each_time(evaluated):
    first = evaluated("random1", "random", questions=12)
    again = evaluated("random2", "random", "evaluate.concurrency=3", questions=12)
    assert first[0] == again[0] and "orchestrator" not in first[1] and len(first[1]) >= 6
