"""The systems that JoyAgents-R1's recipes build: specialists left out, helpers that are served, what is refused."""

from __future__ import annotations

import pytest

from tests.trainer.test_recipes import composed
from verl_ext.trainer.build import build_workflow
from verl_ext.trainer.config import read_mas_config
from verl_ext.trainer.preflight.checks import check_multi_agent

RECIPES = ["joyagents", "joyagents_tiny"]
AGENTS = ["master", "question_agent", "summary", "shop_agent", "function_agent", "math_agent", "intention"]


def built(*overrides: str):
    return build_workflow(read_mas_config(composed(*overrides)))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    ("specialists", "left"),
    [
        ("math_agent,shop_agent", ["master", "math_agent", "shop_agent", "intention"]),
        ("question_agent", ["master", "question_agent", "summary", "intention"]),
        ("question_agent,shop_agent,function_agent,math_agent", AGENTS),
    ],
)
def test_specialists_may_be_left_out_whatever_their_settings(specialists, left, recipe):
    given = [f"+recipe={recipe}", "mas.workflow.encoder=hashing", f"mas.workflow.specialists=[{specialists}]"]
    workflow = built(*given)
    assert list(workflow.agents) == left and all(agent.sampling["max_tokens"] for agent in workflow.agents.values())
    assert [name for name in left if name not in ("summary", "intention")] == workflow.trained_agents
    with pytest.raises(ValueError, match="unknown key mas.agents.math_agnet; did you mean 'math_agent'"):
        built(*given, "+mas.agents.math_agnet.max_tokens=3")


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_helper_is_served_where_its_url_is_given(recipe):
    given = [f"+recipe={recipe}", "mas.workflow.encoder=hashing"]
    assert {agent.llm for agent in built(*given).agents.values()} == {None}
    workflow = built(*given, "mas.agents.summary.endpoint.url=http://127.0.0.1:8100/v1")
    assert [name for name, agent in workflow.agents.items() if agent.llm] == ["summary"]
    with pytest.raises(ValueError, match="mas.agents.summary.endpoint: model='m' is given, but no url"):
        built(*given, "mas.agents.summary.endpoint.model=m")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("mas.workflow.specialist_rounds=0", "mas.workflow.specialist_rounds=0 must be at least 1"),
        ("mas.workflow.max_rounds=0", "mas.workflow.max_rounds=0 must be at least 1"),
        (
            "mas.workflow.specialists=math_agent",
            "mas.workflow.specialists='math_agent' must be a list, as .math_agent.",
        ),
        ("mas.workflow.encoder=miniml", "mas.workflow.encoder='miniml' is no encoder; allowed: hashing, minilm, "),
        ("mas.workflow.encoder=''", "mas.workflow.encoder='' is no encoder"),
        ("mas.workflow.encoder=runs/no/encoder", "'runs/no/encoder' is no encoder; "),
        ("+mas.memory.encoder=nothing", "mas.memory.encoder='nothing' is no encoder; allowed: hashing, minilm, "),
    ],
)
def test_what_a_recipe_says_wrongly_is_named_by_its_key(override, message):
    with pytest.raises(ValueError, match=message):
        check_multi_agent(composed("+recipe=joyagents_tiny", override))


def test_encoders_that_may_be_there_are_not_loaded_for_it(tmp_path):
    for encoder in ("hashing", "minilm", "MiniLM", "facebook/contriever", "a-b_c/d.e", str(tmp_path)):
        both = [f"mas.workflow.encoder={encoder}", f"+mas.memory.encoder={encoder}"]
        assert check_multi_agent(composed("+recipe=joyagents_tiny", *both)) == "accuracy"
