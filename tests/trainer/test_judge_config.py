"""`mas.judge`: who needs it is refused without it, and a start without its server says so."""

from __future__ import annotations

import asyncio

import pytest

from tests.serving import ChatServer
from tests.trainer.test_recipes import composed, examined
from verl_ext.rewards.judge import JudgeFailed
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


def test_a_checkpoint_answers_in_this_process():
    """A tiny model that has never seen a question to a judge: what it says cannot be read, which is a failure."""
    config = composed(*JUDGED, "mas.judge.cache=null", "mas.judge.max_tokens=4")
    config.mas.judge.checkpoint = config.actor_rollout_ref.model.path
    check_judge(config)
    judge = build_workflow(read_mas_config(config)).judge
    said = asyncio.run(judge.chat.complete([{"role": "user", "content": "a"}], {"temperature": 0.0, "max_tokens": 4}))
    assert said.prompt_tokens > 0 and 0 < said.generated_tokens <= 4
    with pytest.raises(JudgeFailed, match="gave no verdict"):
        asyncio.run(judge.ask("exact_answer", question="q", target="t", response="r"))
    with pytest.raises(ValueError, match="is no Hugging Face folder"):
        build_workflow(read_mas_config(composed(*JUDGED, "mas.judge.checkpoint=/nowhere")))
    with pytest.raises(ValueError, match="only one can judge"):
        read_mas_config(composed(*JUDGED, "mas.judge.checkpoint=/nowhere", "mas.judge.url=http://x/v1"))


def test_the_check_says_who_judges_what(tmp_path):
    def said(*overrides):
        return dict(examined(*overrides).facts)["judge"]

    url, cache = "mas.judge.url=http://x/v1", tmp_path / "judge.db"
    line = said(*JUDGED, url, "mas.judge.model=m", f"mas.judge.cache={cache}")
    assert line.startswith("m at http://x/v1 scores success=pass (ToolEval's pass rate, 3 evaluations")
    assert f"kept in {cache}, new" in line and "judge_tokens" in line
    cache.touch()
    assert "there already" in said(*JUDGED, url, f"mas.judge.cache={cache}")
    assert "nowhere" in said(*JUDGED, url, "mas.judge.cache=null")
    rules = said("+recipe=smurfs_tiny", "mas.workflow.success=path")
    assert rules == "none is set: success=path goes by rules, less 0.1 for each call that was not needed"
    assert said("+recipe=smurfs_tiny", url).startswith("none is asked (mas.judge names http://x/v1)")
    assert said("+recipe=mhgpo_tiny") == "none is set: the reward of SearchQA goes by rules"
    open_tasks = said("+recipe=puppeteer_tiny", "mas.workflow.judge=true", url)
    assert open_tasks.startswith("the only model there at http://x/v1 scores the reward of Puppeteer;")
