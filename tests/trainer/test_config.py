"""The section `mas`: typed, strict, with errors that say what is wrong and what is allowed."""

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from verl_ext.mas.limits import Limits
from verl_ext.trainer.config import optimiser_steps, read_mas_config, strategy_from
from verl_ext.trainer.preflight.typed import check_keys

CONFIGS = Path(__file__).parents[2] / "configs"
WORKFLOW = {"_target_": "verl_ext.recipe.mhgpo.SearchQA"}


def configured(mode="seq-mean-token-mean", workflow=WORKFLOW, **mas):
    given = {} if workflow is None else {"workflow": workflow}
    actor = {"actor": {"loss_agg_mode": mode}, "rollout": {"n": 4}}
    return OmegaConf.create({"actor_rollout_ref": actor, "mas": given | mas})


def check_refused(message, **options):
    with pytest.raises(ValueError, match=re.escape(message)):
        read_mas_config(configured(**options))


def test_defaults_and_types():
    mas = read_mas_config(configured())
    assert (mas.sampling.strategy, mas.sampling.group_size, mas.credit.aggregate) == ("fof", 4, "mean")
    assert mas.loss.agent_weights == "batch" and mas.workflow == WORKFLOW
    assert Limits(**vars(mas.limits)) == Limits(), "both places hold the same defaults"
    limits = {"call_timeout": None, "tool_timeout": 5}
    given = read_mas_config(configured(limits=limits, seed=7, agents={"a": {"top_p": 1}}))
    assert given.limits.call_timeout is None and given.limits.tool_timeout == 5.0 and given.seed == 7
    assert mas.memory is None and read_mas_config(configured(memory={})).memory.capacity == 10_000
    assert type(given.agents["a"].top_p) is float and given.agents["a"].max_tokens is None


def test_the_shipped_defaults_are_read_and_are_those_of_the_record():
    shipped = OmegaConf.load(CONFIGS / "base" / "multi_agent.yaml").mas
    shipped.workflow = WORKFLOW
    config = configured()
    config.mas = shipped
    assert read_mas_config(config) == read_mas_config(configured())


@pytest.mark.parametrize(
    "message,options",
    [
        ("unknown key mas.sampling.stategy; did you mean 'strategy'?", {"sampling": {"stategy": "fof"}}),
        ("(allowed: group_by, group_size, rr, seeded, strategy)", {"sampling": {"stategy": "fof"}}),
        ("unknown key mas.sampeling; did you mean 'sampling'?", {"sampeling": {}}),
        ("unknown key mas.sampling.rr.regoup; did you mean 'regroup'?", {"sampling": {"rr": {"regoup": "shuffle"}}}),
        ("unknown key mas.limits.max_call; did you mean 'max_calls'?", {"limits": {"max_call": 3}}),
        ("unknown key mas.agents.rewriter.max_token; did you mean", {"agents": {"rewriter": {"max_token": 1}}}),
        ("unknown key mas.agents.rewriter.temperature", {"agents": {"rewriter": {"temperature": 1.0}}}),
        ("unknown key mas.memory.recal; did you mean 'recall'?", {"memory": {"recal": 3}}),
        ("mas.memory.recall=0 must be at least 1", {"memory": {"recall": 0}}),
        ("mas.memory.alpha=-1.0 must be at least 0 (no decay)", {"memory": {"alpha": -1}}),
        ("unknown key mas.xyz (allowed: advantage, agents,", {"xyz": 1}),
    ],
)
def test_misspelt_keys_name_the_closest(message, options):
    check_refused(message, **options)


@pytest.mark.parametrize(
    "message,options",
    [
        ("mas.sampling.group_size must be of type int, but is '4'", {"sampling": {"group_size": "4"}}),
        ("mas.sampling.group_size must be of type int, but is True", {"sampling": {"group_size": True}}),
        ("mas.sampling.group_size must be of type int, but is 4.0", {"sampling": {"group_size": 4.0}}),
        ("mas.deterministic must be of type bool, but is 1", {"deterministic": 1}),
        ("mas.limits.tool_timeout must be of type float, but is 'long'", {"limits": {"tool_timeout": "long"}}),
        ("mas.limits.max_calls must be of type int, but is None", {"limits": {"max_calls": None}}),
        ("mas.sampling.rr.probabilities must be a list, but is 0.5", {"sampling": {"rr": {"probabilities": 0.5}}}),
        ("mas.sampling.rr.probabilities[1] must be of type float", {"sampling": {"rr": {"probabilities": [0.5, "x"]}}}),
        ("mas.credit must be a section with keys, but is 'mean'", {"credit": "mean"}),
        ("mas.agents must be a section with keys, but is ['a']", {"agents": ["a"]}),
        ("mas.workflow must be a section with keys, but is '???'", {"workflow": "???"}),
    ],
)
def test_wrong_types(message, options):
    check_refused(message, **options)


@pytest.mark.parametrize(
    "message,options",
    [
        ("mas.limits.max_calls=0 must be at least 1", {"limits": {"max_calls": 0}}),
        ("mas.limits.tool_retries=-1 must be at least 0", {"limits": {"tool_retries": -1}}),
        ("mas.limits.call_timeout=0.0 must be above 0, or null", {"limits": {"call_timeout": 0}}),
        ("mas.poll_interval=0.0 must be above 0", {"poll_interval": 0}),
        ("mas.agents.b.top_p=1.5 must be above 0 and at most 1", {"agents": {"b": {"top_p": 1.5}}}),
        ("mas.agents.b.top_k=0 must be at least 1, or -1 for all", {"agents": {"b": {"top_k": 0}}}),
        ("mas.agents.b.top_p=-0.1 must be above 0", {"agents": {"b": {"top_p": -0.1}}}),
        ("mas.agents.b.max_tokens=0 must be at least 1", {"agents": {"b": {"max_tokens": 0}}}),
        (
            "mas.loss.agent_weights='all' is unknown; allowed: batch, question, trajectory, none",
            {"loss": {"agent_weights": "all"}},
        ),
        ("mas.workflow._target_ is missing", {"workflow": {"prompts": "tiny"}}),
        ("mas lacks workflow", {"workflow": None}),
    ],
)
def test_values_out_of_range(message, options):
    check_refused(message, **options)


def test_equation_6_needs_its_aggregation():
    for weights in ("batch", "question"):
        message = "loss_agg_mode=seq-mean-token-mean, but that is 'token-mean'"
        check_refused(message, mode="token-mean", loss={"agent_weights": weights})
    assert read_mas_config(configured("token-mean", loss={"agent_weights": "none"})).loss.agent_weights == "none"


def test_without_the_section_a_recipe_is_named():
    with pytest.raises(ValueError, match="needs the section `mas`.*[+]recipe=mhgpo"):
        read_mas_config(OmegaConf.create({}))


def test_strategies_from_the_configuration():
    def made(**sampling):
        return strategy_from(read_mas_config(configured(sampling=sampling)).sampling, ["a", "b"])

    assert made(strategy="rr", group_size=3, rr={"probabilities": [1, 0]}).probabilities == [1.0, 0.0]
    assert made(strategy="nmc", rr={"probabilities": [1]}).group_size == 4, "options of rr concern rr alone"
    with pytest.raises(ValueError, match="probabilities has 1 values for 2 agents"):
        made(strategy="rr", rr={"probabilities": [1]})
    with pytest.raises(ValueError, match="strategy='gof' is unknown"):
        made(strategy="gof")


def test_check_keys_accepts_what_is_allowed():
    assert check_keys(["a", "b"], ["a", "b", "c"], "x") is None
    with pytest.raises(ValueError, match="unknown key x.0 [(]allowed: a[)]"):
        check_keys([0], ["a"], "x")


@pytest.mark.parametrize("questions,mini,steps", [(32, 32, 1), (32, 8, 4), (5, 1, 5)])
def test_optimiser_steps_count_questions(questions, mini, steps):
    config = OmegaConf.create({"data": {"train_batch_size": questions}, "actor": {"ppo_mini_batch_size": mini}})
    assert optimiser_steps(config, config.actor) == steps


@pytest.mark.parametrize("mini", [5, 64, 0, -1])
def test_mini_batches_must_divide_the_batch(mini):
    config = OmegaConf.create({"data": {"train_batch_size": 32}, "actor": {"ppo_mini_batch_size": mini}})
    with pytest.raises(ValueError, match=f"train_batch_size=32 must be a multiple of ppo_mini_batch_size={mini}"):
        optimiser_steps(config, config.actor)


def test_null_takes_away_an_agent_or_tool_of_the_recipe():
    mas = read_mas_config(configured(agents={"a": {"top_k": 5}, "b": None}, tools={"search": None}))
    assert list(mas.agents) == ["a"] and mas.tools == {}


def test_groups_and_budgets_are_checked():
    check_refused("mas.sampling.group_by='agent' is unknown", sampling={"group_by": "agent"})
    check_refused("mas.budget.questions=0 must be at least 1", budget={"questions": 0})
    assert read_mas_config(configured(budget={"questions": 5})).budget.generated_tokens is None
