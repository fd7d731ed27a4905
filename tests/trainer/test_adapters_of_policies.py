"""An adapter per agent in one of several policies: its settings, whose adapter a call and a row have, checkpoints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.helpers import Script, chain, speaker
from tests.trainer.test_policies import ADAPTED, LARGE, SMALL, configured
from tests.trainer.test_recipes import composed, examined
from tests.trainer.test_rows import sampled_rows
from verl_ext.evaluate.checkpoint import Model
from verl_ext.evaluate.checkpoint_parts import adapters_to_play
from verl_ext.trainer.build import build_workflow
from verl_ext.trainer.config import MasConfig, read_mas_config
from verl_ext.trainer.lora_setup import adapters_of, add_agent_ids, check_resumed
from verl_ext.trainer.policies.settings import policies_of_agents, policy_config
from verl_ext.trainer.preflight.checks import check_multi_agent
from verl_ext.trainer.state.run_settings import leaves, plain


@pytest.fixture(scope="module")
def tiny():
    return composed("+recipe=mhgpo_tiny")


@pytest.mark.parametrize("recipe", [["mhgpo_tiny"], ["mhgpo"], ["mappo_tiny", "+base=lora"]])
def test_adapters_per_agent_have_the_settings_of_a_run_with_them(recipe):
    """Also once all interpolations are resolved: verl does that before the trainer reads the configuration."""
    chosen = [f"+recipe={recipe[0]}", *recipe[1:]]
    alone = composed(*chosen, "mas.policy=per_agent_lora")
    config = configured(composed(*chosen), all={"agents": ["rewriter", "reranker", "answerer"], "per_agent_lora": True})
    OmegaConf.resolve(config)
    runs = alone, policy_config(config, "all")
    before, now = (leaves({key: plain(one[key]) for key in one if key != "hydra"}) for one in runs)
    named = {f"actor_rollout_ref.rollout.custom.{key}" for key in ("policy", "policies")}
    assert {key for key in before | now if before.get(key) != now.get(key)} == named


def test_a_policy_has_adapters_for_those_of_its_agents_that_train(tiny):
    ranked = ADAPTED | {"model": {"lora_rank": 8, "lora_alpha": 8}}
    merged = {"actor_rollout_ref.model.lora_rank": 32, "actor_rollout_ref.model.lora.merge": True}
    section = "+mas.policies.small={agents: [rewriter, reranker], per_agent_lora: true}"
    report = examined("+recipe=mhgpo_tiny", section, "+mas.policies.large={agents: [answerer]}")
    assert report.problems == [] and "LoRA of rank 16 for each agent" in str(report)
    config = configured(tiny, merged | {"mas.agents.reranker": {"trained": False}}, small=ranked, large=LARGE)
    check_multi_agent(config)
    small, large = (policy_config(config, name).actor_rollout_ref.model for name in ("small", "large"))
    assert (small.lora.adapters, small.lora_rank, small.lora.merge) == (["rewriter"], 8, False)
    assert (large.lora.adapters, large.lora_rank, large.lora.merge) == (None, 32, True), "verl's, merged"
    nothing = configured(config, {"mas.agents.rewriter": {"trained": False}}, small=ADAPTED, large=LARGE)
    assert policy_config(nothing, "small").actor_rollout_ref.model.lora.adapters is None
    mas = read_mas_config(nothing)
    assert adapters_of(mas, build_workflow(mas)) is None


def test_calls_name_their_adapter_and_rows_its_number_in_the_policy():
    agents = {name: speaker(name) for name in "abcd"} | {"helper": speaker("helper", trained=False)}
    sections = {"x": "bc", "y": ["a"], "z": ["d", "helper"]}
    mas = MasConfig(
        workflow={}, policies={n: {"agents": [*a], "per_agent_lora": n != "y"} for n, a in sections.items()}
    )
    adapters = adapters_of(mas, Script(chain, agents))
    assert adapters == {"a": None, "b": "b", "c": "c", "d": "d", "helper": ""}
    train, _, forest = sampled_rows(chain, agents, lambda request: "words", adapters=adapters)
    asked = {request.agent: request.sampling.get("adapter") for request in forest.llm.log}
    assert asked == {name: adapters[name] for name in asked} and "adapter" not in forest.llm.log[0].sampling
    rows = [replace(train[0], agent=name) for name in agents] + [replace(train[0], status="idle")]
    numbered = add_agent_ids(rows, adapters, policies_of_agents(mas))
    assert [row.fields["agent_id"] for row in numbered] == [-1, 0, 1, 0, -1, 0], "in all rows of a batch, or it is lost"


def test_another_policys_adapters_are_noticed_before_the_start(tiny, tmp_path):
    place = tmp_path / "global_step_1" / "actor" / "small" / "adapters" / "rewriter"
    place.mkdir(parents=True)
    (place / "adapter_config.json").write_text('{"base_model_name_or_path": "base"}')
    resume = {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": str(tmp_path / "global_step_1")}
    record, names = place.parents[1] / "adapters.json", ["rewriter", "reranker"]
    record.write_text(json.dumps({"names": names, "rank": 16, "alpha": 32}))
    check_resumed(configured(tiny, resume, small=ADAPTED, large=LARGE))
    with pytest.raises(ValueError, match=r"the configuration has none. Remedy: mas.policies.small.per_agent_lora=true"):
        check_resumed(configured(tiny, resume, small=SMALL, large=LARGE))
    record.write_text(json.dumps({"names": names[:1], "rank": 16, "alpha": 32}))
    with pytest.raises(ValueError, match="holds adapters .*, the configuration asks for .*'reranker'"):
        check_resumed(configured(tiny, resume, small=ADAPTED, large=LARGE))


def test_an_agent_that_did_not_train_in_a_policy_with_adapters_is_told(tiny):
    own = Model("base", adapters=Path("adapters"), lora={"names": ["rewriter"]})
    agents = {"small": ["rewriter", "reranker"], "large": ["answerer"]}
    found = Model("base", policies={"small": own, "large": Model("large")}, agents=agents, checkpoint="here")
    config = configured(tiny, {"mas.agents.reranker": {"trained": False}})
    mas = read_mas_config(config)
    assert adapters_to_play(found, mas, build_workflow(mas)) == {
        "rewriter": "rewriter",
        "reranker": "",
        "answerer": None,
    }
    with pytest.raises(ValueError, match="here has no adapter of reranker, which did not train there"):
        adapters_to_play(found, mas, build_workflow(read_mas_config(tiny)))
