"""The section `mas`: typed, strict, with errors that say what is wrong and what is allowed."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.helpers import Script, chain, speaker
from verl_ext.mas.limits import Limits
from verl_ext.settings import check_keys
from verl_ext.trainer.build import build_workflow
from verl_ext.trainer.config import optimiser_steps, read_mas_config, strategy_from

CONFIGS = Path(__file__).parents[2] / "configs"
WORKFLOW = {"_target_": "verl_ext.recipe.mhgpo.SearchQA"}


def configured(mode="seq-mean-token-mean", **mas):
    actor = {"actor": {"loss_agg_mode": mode}, "rollout": {"n": 4, "name": "hf", "agent": {"num_workers": 0}}}
    return OmegaConf.create({"actor_rollout_ref": actor, "mas": {"workflow": WORKFLOW} | mas})


def test_defaults_and_types():
    mas = read_mas_config(configured())
    assert (mas.sampling.strategy, mas.sampling.group_size, mas.credit.aggregate) == ("fof", 4, "mean")
    assert mas.loss.agent_weights == "batch" and mas.workflow == WORKFLOW and mas.memory is None
    assert Limits(**vars(mas.limits)) == Limits(), "both places hold the same defaults"
    limits, agents = {"call_timeout": None, "tool_timeout": 5}, {"a": {"top_p": 1, "top_k": -1}, "b": None}
    given = read_mas_config(configured(limits=limits, memory={}, agents=agents, tools={"search": None}, advantage=None))
    assert (given.limits.call_timeout, given.limits.tool_timeout, given.memory.capacity) == (None, 5.0, 10_000)
    assert type(given.agents["a"].top_p) is float and given.agents["a"].max_tokens is None
    assert list(given.agents) == ["a"] and given.tools == given.advantage == {}, "null takes away what a recipe has set"


def test_the_shipped_defaults_are_read_and_are_those_of_the_record():
    config = configured()
    config.mas = OmegaConf.load(CONFIGS / "base" / "multi_agent.yaml").mas
    config.mas.workflow = WORKFLOW
    shipped = read_mas_config(config)
    plugged = {"sampling": {"rr"}, "credit": {"efficiency", "returns"}}
    assert shipped.model_dump(exclude=plugged) == read_mas_config(configured()).model_dump()
    assert strategy_from(shipped.sampling, ["a", "b"]).group_size == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        # Misspelt keys.
        ({"sampling": {"stategy": "fof"}}, "unknown key mas.sampling.stategy; did you mean 'strategy'? (allowed: "),
        ({"sampeling": {}}, "unknown key mas.sampeling; did you mean 'sampling'? (allowed: advantage, agents,"),
        ({"agents": {"b": {"max_token": 1}}}, "unknown key mas.agents.b.max_token; did you mean"),
        ({"agents": {"b": {"temperature": 1.0}}}, "unknown key mas.agents.b.temperature"),
        # Wrong types.
        ({"sampling": {"group_size": "4"}}, "mas.sampling.group_size='4' must be of type int"),
        ({"limits": {"max_calls": None}}, "mas.limits.max_calls=None must be of type int"),
        ({"tools": {"a": {"once_per_node": "yes"}}}, "mas.tools.a.once_per_node='yes' must be of type bool"),
        ({"tools": {"a": 5}}, "mas.tools.a=5 must be a section with keys"),
        ({"tools": {"a": {"top_k": 3}}}, "mas.tools.a._target_=None must name what makes the tool, e.g. verl_ext."),
        ({"sampling": {"rr": 3}}, "mas.sampling.rr=3 must be a section with keys: options of the strategy"),
        ({"plugins": 5}, "mas.plugins=5 must be a list"),
        ({"plugins": [1]}, "mas.plugins.0=1 must be of type str"),
        ({"policies": {"a": 5}}, "mas.policies.a=5 must be a section with keys"),
        ({"policies": {"a": {"agents": []}}}, "mas.policies.a.agents=[] must have 1 or more"),
        ({"credit": "mean"}, "mas.credit='mean' must be a section with keys"),
        ({"agents": ["a"]}, "mas.agents=['a'] must be a section with keys"),
        ({"workflow": "???"}, "mas.workflow='???' must be a section with keys"),
        # Values out of range: the bound, and the meaning of the number.
        ({"limits": {"max_calls": 0}}, "mas.limits.max_calls=0 must be at least 1 (agent calls)"),
        ({"limits": {"call_timeout": 0}}, "mas.limits.call_timeout=0 must be above 0 (seconds; null: no limit)"),
        ({"poll_interval": 0}, "mas.poll_interval=0 must be above 0"),
        ({"memory": {"alpha": -1}}, "mas.memory.alpha=-1 must be at least 0 (0: no decay)"),
        ({"trajectory_log": {"train_questions": -1}}, "mas.trajectory_log.train_questions=-1 must be at least 0"),
        ({"trajectory_log": {"file_mb": 0}}, "mas.trajectory_log.file_mb=0 must be above 0"),
        ({"budget": {"questions": 0}}, "mas.budget.questions=0 must be at least 1"),
        ({"agents": {"b": {"top_p": 1.5}}}, "mas.agents.b.top_p=1.5 must be at most 1"),
        ({"agents": {"b": {"top_k": 0}}}, "mas.agents.b.top_k=0 must be at least 1, or -1 for all"),
        ({"sampling": {"group_by": "agent"}}, "mas.sampling.group_by='agent' is unknown; allowed: position, question"),
        # Places that are none.
        ({"judge": {"url": "localhost:8100"}}, "mas.judge.url='localhost:8100' must be the base URL of a server"),
        ({"agents": {"b": {"endpoint": {"url": ""}}}}, "mas.agents.b.endpoint.url='' must be the base URL of a"),
        # Values that do not go together.
        ({"loss": {"agent_weights": "bach"}}, "mas.loss.agent_weights='bach' is unknown; did you mean 'batch'?"),
        ({"workflow": {"prompts": "tiny"}}, "mas.workflow._target_ is missing"),
        ({"mode": "token-mean"}, "loss_agg_mode=seq-mean-token-mean, but that is 'token-mean'"),
        ({"mode": "token-mean", "loss": {"agent_weights": "question"}}, "loss_agg_mode=seq-mean-token-mean, but that"),
        ({"mode": "token-mean", "loss": {"agent_weights": "trajectory"}}, "ToolPO's Eq. 8 only under"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(ValueError) as refused:
        read_mas_config(configured(**options))
    assert message in str(refused.value)


def test_everything_that_is_wrong_is_named_at_once():
    with pytest.raises(ValueError, match=r"(?s)mas.limits.max_calls=0 .*\n.*did you mean 'sampling'"):
        read_mas_config(configured(limits={"max_calls": 0}, sampeling={}))


def test_equation_6_may_be_switched_off():
    assert read_mas_config(configured("token-mean", loss={"agent_weights": "none"})).loss.agent_weights == "none"


@pytest.mark.parametrize(("config", "message"), [({}, "[+]recipe=mhgpo_tiny"), ({"mas": {}}, "mas lacks workflow")])
def test_without_the_section_or_the_workflow(config, message):
    with pytest.raises(ValueError, match=message):
        read_mas_config(OmegaConf.create(config))


def made(strategy, **options):
    return strategy_from(read_mas_config(configured(sampling={"strategy": strategy, **options})).sampling, ["a", "b"])


def test_strategies_have_options_under_their_names():
    assert made("rr", group_size=3, rr={"probabilities": [1, 0]}).probabilities == [1.0, 0.0]
    assert made("nmc", rr={"probabilities": [1]}).group_size == 4, "options of rr concern rr alone"


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        ("rr", {"probabilities": [1]}, "probabilities has 1 values for 2 agents"),
        ("fo", {}, "mas.sampling.strategy='fo' is unknown; did you mean 'fof'?"),
        ("rr", {"regoup": "shuffle"}, "unknown key mas.sampling.rr.regoup; did you mean 'regroup'?"),
        ("rr", {"probabilities": 0.5}, "mas.sampling.rr.probabilities=0.5 must be a list"),
        ("rr", {"probabilities": [0.5, "x"]}, "mas.sampling.rr.probabilities.1='x' must be of type float"),
    ],
)
def test_options_that_a_strategy_refuses(strategy, options, message):
    with pytest.raises(ValueError) as refused:
        made(strategy, rr=options)
    assert message in str(refused.value)


def test_check_keys_accepts_what_is_allowed():
    assert check_keys(["a", "b"], ["a", "b", "c"], "x") is None
    with pytest.raises(ValueError, match="unknown key x.0 [(]allowed: a[)]\nunknown key x.b.*\nnull takes it away$"):
        check_keys([0, "a", "b"], ["a"], "x", "null takes it away")


@pytest.mark.parametrize(
    ("questions", "mini", "found"),
    [
        *[(32, 32, 1), (32, 8, 4), (5, 1, 5)],
        *[(32, mini, f"train_batch_size=32 must be a multiple of ppo_mini_batch_size={mini}") for mini in (5, 64)],
        (32, 0, "ppo_mini_batch_size=0 must be at least 1"),
        (0, 8, "data.train_batch_size=0 must be at least 1"),
    ],
)
def test_optimiser_steps_count_questions(questions, mini, found):
    config = OmegaConf.create({"data": {"train_batch_size": questions}, "actor": {"ppo_mini_batch_size": mini}})
    if isinstance(found, int):
        assert optimiser_steps(config, config.actor) == found
    else:
        with pytest.raises(ValueError, match=found):
            optimiser_steps(config, config.actor)


class Slashed(Script):
    """A workflow whose agent would share the identity of an agent in a branch."""

    def __init__(self):
        super().__init__(chain, {"left/writer": speaker("writer")})


def test_an_agents_name_must_not_look_like_a_place():
    mas = read_mas_config(configured(workflow={"_target_": f"{__name__}.Slashed"}))
    with pytest.raises(ValueError, match="has an agent 'left/writer': a name must not be empty nor contain /"):
        build_workflow(mas)


def test_failure_rewards_are_those_that_are_set():
    assert read_mas_config(configured(failure={"call_limit": 0, "timeout": None})).failure.rewards == {
        "call_limit": 0.0
    }
    with pytest.raises(ValueError, match="mas.failure.call_limit"):
        read_mas_config(configured(failure={"call_limit": float("nan")}))
