"""`mas.judge`: who needs it is refused without it, and a start without its server says so."""

from __future__ import annotations

import pytest

from tests.serving import ChatServer
from tests.trainer.test_recipes import composed
from verl_ext.trainer.build import build_workflow
from verl_ext.trainer.config import read_mas_config
from verl_ext.trainer.preflight.checks import check_judge, check_multi_agent

JUDGED = ("+recipe=smurfs_tiny", "mas.workflow.success=pass")


def test_a_reward_that_asks_a_judge_needs_one():
    with pytest.raises(ValueError, match="mas.judge names none. Remedy: mas.judge.url="):
        check_multi_agent(composed(*JUDGED))
    assert build_workflow(read_mas_config(composed("+recipe=smurfs_tiny", "mas.judge.url=http://x/v1"))).judge is None


def test_the_judges_server_is_asked_before_the_start(tmp_path):
    check_judge(composed("+recipe=smurfs_tiny", "mas.judge.url=http://127.0.0.1:9/v1"))  # nobody needs it
    with pytest.raises(ValueError, match="no server answers at mas.judge.url=http://127.0.0.1:9/v1"):
        check_judge(composed(*JUDGED, "mas.judge.url=http://127.0.0.1:9/v1"))
    with ChatServer(models=("one", "two")) as server:
        with pytest.raises(ValueError, match="mas.judge.model is not set"):
            check_judge(composed(*JUDGED, f"mas.judge.url={server.url}"))
        check_judge(composed(*JUDGED, f"mas.judge.url={server.url}", "mas.judge.model=two"))
        assert not server.requests and not (tmp_path / "judge.db").exists()


def test_a_judge_is_built_as_configured(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("tone: {text: Rate the tone of ANSWER, fields: [answer], answers: {score: [1, 5]}}")
    more = (f"mas.judge.templates={own}", "mas.judge.temperature=0.5", "mas.judge.cache=null", "mas.seed=7")
    mas = read_mas_config(composed(*JUDGED, "mas.judge.url=http://x/v1", "mas.judge.model=m", *more))
    judge = build_workflow(mas).judge
    assert judge.path is None and (judge.seed, judge.temperature) == (7, 0.5) and "tone" in judge.templates
    assert mas.judge.identity["model"] == "m" and "Rate the tone" in mas.judge.identity["templates"]
    with pytest.raises(ValueError, match="mas.judge.templates"):
        build_workflow(read_mas_config(composed(*JUDGED, "mas.judge.url=http://x/v1", "mas.judge.templates=no.yaml")))
