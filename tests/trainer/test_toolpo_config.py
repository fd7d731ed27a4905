"""ToolPO's recipes: what they refuse, and verl's GRPO in its place. Options of every algorithm."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf
from pydantic import Field

from tests.trainer.test_recipes import AGENTS, Alone, composed
from verl_ext.algorithms import ALGORITHMS, Algorithm
from verl_ext.trainer.config import read_mas_config
from verl_ext.trainer.preflight.checks import check_multi_agent

TOOLPO = ("algorithm.adv_estimator=toolpo", "mas.sampling.strategy=fof")
# As the study's GRPO was written when its published runs were made.
BY_HAND = (
    "algorithm.adv_estimator=grpo",
    "mas.loss.agent_weights=none",
    "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean",
    "~mas.advantage",
)


@pytest.mark.parametrize("strategy", ["is", "rr", "nmc"])
def test_toolpo_needs_whole_trajectories(strategy):
    config = composed("+recipe=toolpo_tiny", f"mas.sampling.strategy={strategy}")
    with pytest.raises(ValueError, match=f"toolpo needs .* Under mas.sampling.strategy={strategy} .* Remedy: .*=fof"):
        check_multi_agent(config)
    assert check_multi_agent(composed("+recipe=toolpo_tiny", "mas.sampling.strategy=fof")) == "success"


def test_toolpo_needs_a_workflow_that_counts_correct_calls():
    with pytest.raises(ValueError, match="reads correct_calls .* but SearchQA reports only f1. Remedy: let its"):
        check_multi_agent(composed("+recipe=mhgpo_tiny", *TOOLPO))
    counting = "mas.workflow._target_=tests.trainer.test_toolpo_config.Counting"
    workflow = [counting, *(f"~mas.agents.{name}" for name in AGENTS)]
    assert check_multi_agent(composed("+recipe=mhgpo_tiny", *TOOLPO, *workflow)) == "f1"


def test_one_override_puts_grpo_in_toolpos_place():
    config, by_hand = composed("+recipe=toolpo_tiny", "+base=grpo"), composed("+recipe=toolpo_tiny", *BY_HAND)
    assert check_multi_agent(config) == "success"
    assert read_mas_config(config) == read_mas_config(by_hand) and read_mas_config(config).advantage == {}
    for one in (config, by_hand):
        OmegaConf.set_struct(one, False)
        one.pop("hydra")  # holds the command line itself
        one.mas.pop("advantage", None)
    assert OmegaConf.to_container(config, resolve=True) == OmegaConf.to_container(by_hand, resolve=True)


@pytest.mark.parametrize("recipe", ["deepagent", "joyagents_tiny", "mhgpo_tiny"])
def test_grpo_stands_behind_other_recipes_too(recipe):
    config = composed(f"+recipe={recipe}", "+base=grpo")
    check_multi_agent(config)
    assert (config.algorithm.adv_estimator, config.mas.sampling.strategy) == ("grpo", "fof")


@pytest.mark.parametrize(
    ("recipe", "override", "message"),
    [
        ("toolpo_tiny", "mas.advantage.lambda_call=-1", "mas.advantage.lambda_call=-1 must be at least 0"),
        ("toolpo_tiny", "mas.advantage.lambda_fold=inf", "mas.advantage.lambda_fold=inf must be finite"),
        ("joyagents_tiny", "mas.advantage.per=node", "mas.advantage.per='node' is unknown; allowed: question, batch"),
        ("joyagents_tiny", "mas.advantage.top_k=-1", "mas.advantage.top_k=-1 must be at least 0"),
    ],
)
def test_an_algorithm_looks_at_its_options_before_the_start(recipe, override, message):
    with pytest.raises(ValueError, match=message):
        check_multi_agent(composed(f"+recipe={recipe}", override))


def test_an_algorithm_of_ones_own_may_read_what_its_workflow_does_not_name(monkeypatch):
    class Mine(Algorithm):
        name = "mine"
        sharpness: float = Field(1.0, gt=0)

        def advantages(self, rows, config):
            return rows.metrics["speed"][:, None] * rows.mask

    monkeypatch.setitem(ALGORITHMS, "mine", Mine)
    overrides = ["+recipe=mhgpo_tiny", "algorithm.adv_estimator=mine"]
    assert check_multi_agent(composed(*overrides, "+mas.advantage.sharpness=2")) == "f1"
    with pytest.raises(ValueError, match="sharpness=0 must be above 0"):
        check_multi_agent(composed(*overrides, "+mas.advantage.sharpness=0"))


class Counting(Alone):
    """A system of one agent that counts correct calls."""

    headline, details = "f1", ("correct_calls",)
