"""Policy heads beside the trainer: over steps and checkpoints, in an evaluation; and settings that cannot be."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
import torch

from tests.trainer.test_recipes import composed
from verl_ext.algorithms import make_algorithm
from verl_ext.check import examine
from verl_ext.evaluate.checkpoint_parts import load_heads
from verl_ext.evaluate.config import EvaluateConfig
from verl_ext.heads import PolicyHead
from verl_ext.heads.learner import Learner
from verl_ext.memory import HashingSimilarity
from verl_ext.observe.question_stats import HeadDecision, QuestionStats
from verl_ext.trainer.build import build_workflow
from verl_ext.trainer.config import read_mas_config
from verl_ext.trainer.lora_setup import adapters_of, decides
from verl_ext.trainer.preflight.checks import check_multi_agent
from verl_ext.trainer.state.checkpoint import mark_complete
from verl_ext.trainer.state.decision_heads import FILE, FOLDER, DecisionHeads, heads_of, weights_from

HEAD = "+mas.agents.orchestrator.head.encoder=hashing"


def heads(folder, checkpoint=None, *overrides):
    """Heads of the tiny recipe, and what they have published."""
    mas = read_mas_config(composed("+recipe=puppeteer_tiny", HEAD, *overrides))
    made, seen = DecisionHeads(mas, make_algorithm("puppeteer", mas.advantage), folder, 1.0), []
    made.start(checkpoint)
    made.publish(seen.append)
    return made, seen


def step_of(rewards, state="who: 1 + 2", chosen=(0, 1)):
    """A question with two decisions in one place."""
    decisions = [
        HeadDecision("orchestrator", state, ("a", "b"), choice, "g", reward)
        for choice, reward in zip(chosen, rewards, strict=True)
    ]
    return [QuestionStats(0, rewards=[1.0, 0.0], head_decisions=decisions)]


def checkpoint_of(made, folder, step):
    made.save(step)
    (folder / f"global_step_{step}" / "actor").mkdir()
    mark_complete(folder, step)
    return folder / f"global_step_{step}"


def test_what_a_step_teaches_is_seen_from_the_next_on(tmp_path):
    made, seen = heads(tmp_path)
    assert len(seen) == 1 and not seen[0]["orchestrator"].matrix.any() and seen[0]["orchestrator"].version == 0
    metrics = made.learn(1, step_of((1.0, 0.0)))
    assert len(seen) == 2 and not seen[0]["orchestrator"].matrix.any()
    head = PolicyHead(HashingSimilarity())
    head.weights = seen[1]["orchestrator"]
    assert head.weights.version == 1 and np.exp(head.log_probs("who: 1 + 2", ["a", "b"]))[0] > 0.6
    # Group baseline: A = ±1/2, and log π = log 1/2 of both.
    assert metrics == {
        "head/orchestrator/loss": pytest.approx(0.0, abs=1e-15),
        "head/orchestrator/entropy": pytest.approx(math.log(2)),
        "head/orchestrator/grad_norm": metrics["head/orchestrator/grad_norm"],
        "head/orchestrator/return": 0.5,
        "head/orchestrator/decisions": 2.0,
    }
    assert made.learn(2, [QuestionStats(0)]) == {}, "nobody was asked"
    assert seen[2]["orchestrator"].version == 2 and (seen[2]["orchestrator"].matrix == head.weights.matrix).all()


@pytest.mark.parametrize(("baseline", "loss"), [("none", -1.0), ("mean", 0.0)])
def test_the_baseline_is_the_algorithms(tmp_path, baseline, loss):
    """−1/2 Σ A log π with log π = log 1/2: none gives A = 1.5, 0.5; the first step's mean is its own, 1."""
    made, _ = heads(tmp_path, None, f"mas.advantage.baseline={baseline}")
    metrics = made.learn(1, step_of((1.5, 0.5)))
    assert metrics["head/orchestrator/loss"] == pytest.approx(-loss * math.log(2), abs=1e-15)
    kept = made.learners["orchestrator"].baseline
    assert kept == ({"mean_return": 1.0} if baseline == "mean" else {})


def test_a_run_goes_on_from_its_checkpoint_bit_by_bit(tmp_path):
    made, _ = heads(tmp_path, None, "mas.advantage.baseline=mean")
    made.learn(1, step_of((1.0, 0.0)))
    place = checkpoint_of(made, tmp_path, 1)
    assert [path.name for path in (place / FOLDER).iterdir()] == [FILE]
    made.learn(2, step_of((0.2, 0.9)))
    again, seen = heads(tmp_path, place, "mas.advantage.baseline=mean")
    assert seen[0]["orchestrator"].version == 1
    again.learn(2, step_of((0.2, 0.9)))
    one, other = made.learners["orchestrator"], again.learners["orchestrator"]
    assert torch.equal(one.matrix, other.matrix) and one.baseline == other.baseline
    assert one.state()["adam"][0]["exp_avg_sq"].equal(other.state()["adam"][0]["exp_avg_sq"])
    (place / "actor").rmdir()
    made.save(2)
    assert not (place / FOLDER).exists(), "gone with the weights"


def test_a_checkpoint_without_the_head_begins_untrained_and_says_so(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        _, seen = heads(tmp_path, tmp_path / "global_step_7")
    assert not seen[0]["orchestrator"].matrix.any() and "has no head of agent orchestrator" in caplog.text


def changed(**saved):
    """What a checkpoint holds of a head, with other values."""
    whole = Learner(HashingSimilarity(), 0.1).state()
    return {"orchestrator": {key: value for key, value in (whole | saved).items() if value is not None}}


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ([1], "holds a list"),
        ({"orchestrator": []}, "is no policy head: it lacks encoder, matrix"),
        (changed(baseline=None), "is no policy head: it lacks baseline$"),
        (changed(matrix=torch.zeros(3, 3)), "must be 128 × 128 finite numbers"),
        (changed(matrix=torch.full((128, 128), math.nan)), "must be 128 × 128 finite numbers"),
    ],
)
def test_a_file_that_holds_something_else(tmp_path, saved, message):
    (tmp_path / FOLDER).mkdir()
    torch.save(saved, tmp_path / FOLDER / FILE)
    with pytest.raises(ValueError, match=message):
        heads(tmp_path, tmp_path)
    workflow = build_workflow(read_mas_config(composed("+recipe=puppeteer_tiny", HEAD)))
    with pytest.raises(ValueError, match=message):
        weights_from(tmp_path / FOLDER, workflow)


def test_without_heads_nothing_happens(tmp_path):
    mas = read_mas_config(composed("+recipe=puppeteer_tiny"))
    made, seen = DecisionHeads(mas, make_algorithm("puppeteer", mas.advantage), tmp_path, 1.0), []
    made.start(None)
    made.publish(seen.append)
    assert made.learn(1, step_of((1.0, 0.0))) == {} and seen == []
    made.save(1)
    assert list(tmp_path.iterdir()) == []


# --- settings -------------------------------------------------------------------------------------------------------


def test_what_a_head_means_for_the_rest_of_the_configuration(tmp_path):
    config = composed("+recipe=puppeteer_tiny", HEAD)
    assert check_multi_agent(config) == "accuracy" and not decides(config)
    workflow = build_workflow(read_mas_config(config))
    assert workflow.trained_agents == ["orchestrator"] and workflow.policy_agents == []
    assert list(heads_of(workflow)) == ["orchestrator"]
    report = examine(["+recipe=puppeteer_tiny", HEAD, f"trainer.default_local_dir={tmp_path}"])
    assert report.problems == [] and ("heads", "orchestrator: hashing, lr 0.1") in report.facts
    joint = ["mas.workflow.train_agents=true", "mas.loss.agent_weights=batch", "mas.policy=per_agent_lora"]
    joint += ["actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"]
    config = composed("+recipe=puppeteer_tiny", HEAD, *joint)
    check_multi_agent(config)
    mas = read_mas_config(config)
    adapters = adapters_of(mas, build_workflow(mas))
    assert "orchestrator" not in config.actor_rollout_ref.model.lora.adapters
    assert adapters["orchestrator"] == "" and adapters["reasoning"] == "reasoning"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["+mas.agents.reasoning.head.encoder=hashing"],
            "reasoning.head: a policy head chooses among .* Remedy: no head here",
        ),
        ([HEAD, "+mas.agents.orchestrator.head.lr=0"], "mas.agents.orchestrator.head.lr=0 must be above 0"),
        ([HEAD, "+mas.agents.orchestrator.head.entropy=-1"], "head.entropy=-1 must be at least 0"),
        (["+mas.agents.orchestrator.head.encoder=hasing"], "head.encoder='hasing' is no encoder; allowed: hashing, "),
        (["+mas.agents.orchestrator.head.encode=hashing"], "unknown key .*head.encode; did you mean 'encoder'"),
        (
            [HEAD, "+mas.agents.orchestrator.trained=false", "+mas.agents.orchestrator.endpoint.url=http://x/v1"],
            "orchestrator has an endpoint and a head",
        ),
        ([HEAD, "+mas.agents.orchestrator.trained=false"], "no agent of this system trains"),
    ],
)
def test_settings_that_cannot_be(overrides, message):
    with pytest.raises(ValueError, match=message):
        check_multi_agent(composed("+recipe=puppeteer_tiny", *overrides))


def test_an_evaluation_takes_the_heads_of_a_checkpoint_and_refuses_to_go_without(tmp_path):
    made, seen = heads(tmp_path)
    made.learn(1, step_of((1.0, 0.0)))
    place = checkpoint_of(made, tmp_path, 1)
    workflow = build_workflow(read_mas_config(composed("+recipe=puppeteer_tiny", HEAD)))
    named = load_heads(EvaluateConfig(output="out", model=str(place)), workflow)
    head = workflow.agents["orchestrator"].llm
    assert (head.weights.matrix == seen[-1]["orchestrator"].matrix).all() and head.weights.version == 1
    served = EvaluateConfig(output="out", model="m", endpoint="http://x/v1", heads=str(place / FOLDER))
    assert load_heads(served, workflow) == named
    for section, message in (
        (EvaluateConfig(output="out"), "policy head of orchestrator has no weights here. Remedy: evaluate.model="),
        (EvaluateConfig(output="out", model="m", endpoint="http://x/v1"), "has no weights here"),
        (EvaluateConfig(output="out", model=str(tmp_path)), "has no policy head of orchestrator"),
    ):
        with pytest.raises(ValueError, match=message):
            load_heads(section, workflow)
    plain = build_workflow(read_mas_config(composed("+recipe=puppeteer_tiny")))
    assert load_heads(EvaluateConfig(output="out"), plain) is None
    with pytest.raises(ValueError, match="needs an agent with a head"):
        load_heads(served, plain)
