"""Every shipped recipe composes through the real command line and passes the checks that need no hardware."""

from __future__ import annotations

import copy
import functools
import re
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_module
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

import verl_ext.plugin  # noqa: F401  (search path and resolvers, as `import verl` does it)
from verl_ext.algorithms import ALGORITHMS, make_algorithm
from verl_ext.check import fill
from verl_ext.mas import Agent, Workflow
from verl_ext.mas.credit import AGGREGATES
from verl_ext.sampling import STRATEGIES
from verl_ext.trainer.advantage import batch_of, register_estimators
from verl_ext.trainer.build import build_workflow
from verl_ext.trainer.config import read_mas_config
from verl_ext.trainer.preflight.checks import check_multi_agent
from verl_ext.trainer.preflight.plan import Report
from verl_ext.trainer.preflight.values import check_keys_known, check_numbers

ROOT = Path(__file__).parents[2]
RECIPES = sorted(path.stem for path in (ROOT / "configs" / "recipe").glob("*.yaml"))
AGENTS = ("rewriter", "reranker", "answerer")


def composed(*overrides: str, config_dir: str | None = None):
    """The job's configuration, as `python -m verl.trainer.main_ppo` composes it, checked for misspelt keys.

    The groups are composed once for all tests; Hydra's own function then applies the other overrides to a copy.
    """
    groups = tuple(one for one in overrides if re.match(r"\+?(recipe|base)=", one))
    config = copy.deepcopy(_composed(groups, config_dir))
    rest = OverridesParser.create().parse_overrides([one for one in overrides if one not in groups])
    ConfigLoaderImpl._apply_overrides_to_config(rest, config)
    check_keys_known(config, list(overrides))
    return config


@functools.cache
def _composed(groups: tuple[str, ...], config_dir: str | None):
    GlobalHydra.instance().clear()
    extra = [f"hydra.searchpath=[file://{config_dir}]"] if config_dir else []
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[*extra, *groups], return_hydra_config=True)
        check_keys_known(config, list(groups))
    return config


def examined(*overrides: str, **options) -> Report:
    """As `verl_ext.check.examine`, from `composed`."""
    report = Report(composed(*overrides))
    fill(report, **options)
    return report


# What a person watches, and the estimator, by a recipe's name or the first part of it; f1 and mhgpo of all others.
WATCHED = {
    "solver": "em",
    "toolpo": "success",
    "deepagent": "success",
    "smurfs": "success",
    "baseline": "success",
    "joyagents": "accuracy",
}
WATCHED |= {"joyagents_decisions": "f1", "puppeteer": "accuracy"}
ESTIMATORS = {"mappo": "gae", "solver_verifier_mappo_tiny": "gae", "single": "grpo", "solver_tiny": "grpo"}
ESTIMATORS |= {"toolpo": "toolpo", "deepagent": "toolpo", "puppeteer": "puppeteer", "joyagents": "joyagents"}
ESTIMATORS |= {"joyagents_decisions": "grpo", "joyagents_single": "grpo"}


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_composes_and_is_valid(recipe):
    config, family = composed(f"+recipe={recipe}"), recipe.split("_")[0]
    assert check_multi_agent(config) == WATCHED.get(recipe, WATCHED.get(family, "f1"))
    assert config.trainer.v1.trainer_mode == "mas_sync"
    assert config.algorithm.adv_estimator == ESTIMATORS.get(recipe, ESTIMATORS.get(family, "mhgpo"))
    ray = config.ray_kwargs.ray_init
    assert ray.num_cpus is None or ray.address == "local", "Ray refuses num_cpus where it joins a running cluster"
    assert "RunCallback" in config.hydra.callbacks.verl_ext._target_
    assert Path(str(config.actor_rollout_ref.model.path)).is_relative_to(ROOT) == recipe.endswith("_tiny")


def test_the_example_of_an_own_system_composes():
    config = composed("+recipe=own_system", config_dir=str(ROOT / "examples" / "own_system"))
    assert check_multi_agent(config) == "f1"


def test_command_line_beats_recipe_beats_verl():
    config = composed("+recipe=mhgpo_tiny", "actor_rollout_ref.rollout.n=6", "mas.sampling.strategy=is")
    assert (config.actor_rollout_ref.rollout.n, config.mas.sampling.group_size) == (6, 6)
    assert config.mas.sampling.strategy == "is"
    assert config.data.train_batch_size == 32  # the recipe's; verl's is 1024


# What the papers say of their runs (MHGPO: Table 2; DeepAgent; JoyAgents-R1: Sections 4.1, 4.2 and Table 4; Puppeteer:
# Section 3). ROLLOUT and ACTOR stand for verl's sections.
PAPERS = {
    "mhgpo": "data.train_batch_size=512 ROLLOUT.n=4 ROLLOUT.top_p=0.9 ROLLOUT.name=vllm ACTOR.optim.lr=1e-6 "
    "ACTOR.clip_ratio=0.2 ACTOR.kl_loss_coef=0.001 ACTOR.ppo_epochs=1 mas.sampling.rr.probabilities=[0.7,0.1,0.2] "
    "trainer.n_gpus_per_node=8",
    "mappo": "ACTOR.optim.lr=1e-6 critic.optim.lr=1e-6 ACTOR.use_kl_loss=false ACTOR.clip_ratio=0.2 ROLLOUT.n=1",
    "deepagent": "data.train_batch_size=64 ROLLOUT.n=8 trainer.total_training_steps=100 data.max_prompt_length=8192 "
    "data.max_response_length=24576 ROLLOUT.val_kwargs.temperature=0.7 ROLLOUT.val_kwargs.top_p=0.8 "
    "ROLLOUT.val_kwargs.top_k=20 mas.advantage.lambda_call=1.0 mas.advantage.lambda_fold=1.0 trainer.nnodes=8 "
    "mas.tools.tool_search.dense.model=BAAI/bge-large-en-v1.5 trainer.n_gpus_per_node=8",
    "joyagents": "ACTOR.optim.lr=1e-6 ACTOR.optim.clip_grad=1.0 ACTOR.ppo_epochs=2 ACTOR.clip_ratio=0.2 "
    "ACTOR.use_kl_loss=false ROLLOUT.n=5 ROLLOUT.temperature=1.2 ACTOR.optim.override_optimizer_config.eps=1e-5 "
    "mas.sampling.strategy=nmc mas.advantage.top_k=5 mas.credit.aggregate=own mas.credit.efficiency=1.0 "
    "mas.loss.agent_weights=none mas.memory.beta=1.0 mas.memory.threshold=0.0 data.max_prompt_length=14336 "
    "data.max_response_length=2048 trainer.total_epochs=5 trainer.n_gpus_per_node=6",
    "puppeteer": "mas.workflow.depth=4 mas.workflow.width=3 mas.credit.returns.price=0.1 mas.credit.returns.steps=4 "
    "mas.credit.returns.discount=0.99 mas.advantage.baseline=none mas.workflow.train_agents=false "
    "ACTOR.use_kl_loss=false ACTOR.ppo_epochs=1 ACTOR.loss_agg_mode=seq-mean-token-sum "
    "mas.loss.agent_weights=trajectory trainer.n_gpus_per_node=8",
}


@pytest.mark.parametrize("recipe", PAPERS)
def test_a_recipe_has_the_settings_of_its_paper(recipe):
    config = composed(f"+recipe={recipe}")
    for word in PAPERS[recipe].split():
        key, _, value = word.partition("=")
        key = key.replace("ROLLOUT", "actor_rollout_ref.rollout").replace("ACTOR", "actor_rollout_ref.actor")
        assert OmegaConf.select(config, key) == OmegaConf.create(f"value: {value}").value, key


@pytest.mark.parametrize("recipe", ["joyagents", "joyagents_tiny", "puppeteer", "puppeteer_tiny"])
def test_a_recipe_lacks_only_what_is_not_here(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = examined(f"+recipe={recipe}")
    assert report.problems == []
    reasons = ("the data file data/", "does not exist", "is not installed")
    assert all(any(reason in one for reason in reasons) for one in report.missing), report.missing
    assert bool(report.missing) != recipe.endswith("_tiny"), "those make their data at the start, by mas.prepare"


PLACES = {"alfworld": ("mas.workflow.environment=environment",), "webshop": ("mas.workflow.environment=environment",)}


@pytest.mark.parametrize("task", ["", "_tmdb", "_api_bank", "_toolhop", "_alfworld", "_webshop", "_gaia", "_hle"])
def test_deepagents_baselines_have_its_tools_and_sampling(task):
    """Tables 1, 2, 4 and 5 of DeepAgent."""
    more = PLACES.get(task[1:], ("mas.workflow.tools=search",) if task not in ("_gaia", "_hle") else ())
    config = composed(f"+recipe=deepagent{task}", "+base=deepagent_baseline", *more)
    for baseline in ("ReAct", "CodeAct", "PlanAndSolve", "Reflexion"):
        config.mas.workflow._target_ = f"verl_ext.recipe.baselines.{baseline}"
        workflow = build_workflow(read_mas_config(config))
        assert workflow.budget == 50 and "agent" in workflow.agents and "auxiliary" not in workflow.agents
    val = config.actor_rollout_ref.rollout.val_kwargs
    assert (val.temperature, val.top_p, val.top_k) == (0.7, 0.8, 20)


BENCHMARKS = ("tmdb", "spotify", "api_bank", "toolhop", "hotpotqa")
SMURFS = ("smurfs", "smurfs_react", "smurfs_dfsdt")
# Recipes with tasks that take tools, and what stands behind them.
TOOL_RECIPES = [(recipe, ()) for recipe in (*SMURFS, *RECIPES) if recipe in SMURFS or recipe.startswith("deepagent")]
TOOL_RECIPES += [("smurfs", (f"+base={name}",)) for name in BENCHMARKS]
TOOL_RECIPES += [(recipe, ("+base=hotpotqa",)) for recipe in SMURFS[1:]]
TOOL_RECIPES += [("deepagent", ("mas.workflow.tools=given",))]
TOOL_RECIPES += [("smurfs", ("mas.workflow.tools=search", "+base=[toolpo,tmdb]"))]


@pytest.mark.parametrize(("recipe", "more"), TOOL_RECIPES)
def test_a_benchmark_of_tools_lacks_only_what_is_not_here(recipe, more, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = examined(f"+recipe={recipe}", *more)
    assert report.problems == []
    data = [one for one in report.missing if one.startswith("the data file")]
    tools = [one for one in report.missing if one not in data]
    assert len(data) == 2 and "train.parquet" in data[0], data
    assert bool(tools) != (recipe == "deepagent_hle") and all(one.startswith("mas.tools.") for one in tools), tools
    reasons = ("does not exist", "is not installed. Remedy: ", "no index at data/hotpotqa/index", "there is no folder")
    assert all(any(reason in one for reason in reasons) for one in tools), tools


@pytest.mark.parametrize(
    ("base", "success", "ordered", "kind"),
    [
        ("tmdb", "path", True, "openapi"),
        ("spotify", "path", True, "openapi"),
        ("api_bank", "path", False, "api_bank"),
        ("toolhop", "answer", False, "toolhop"),
        ("hotpotqa", "f1", False, "encyclopedia"),
    ],
)
def test_systems_are_compared_on_the_same_tasks_by_the_same_measure(base, success, ordered, kind):
    read = set()
    # DeepAgent cannot be given HotpotQA's tools.
    for recipe in (*SMURFS, "deepagent")[: 3 if base == "hotpotqa" else 4]:
        config = composed(f"+recipe={recipe}", f"+base={base}")
        assert check_multi_agent(config) == "success"
        workflow, (source,) = config.mas.workflow, config.mas.tools.tool_search.sources
        assert (workflow.success, workflow.ordered, source.kind) == (success, ordered, kind)
        files = (config.data.train_files, config.data.val_files, source.get("path"))
        read.add((*files, config.mas.tools.tool_call.recorded))
    assert len(read) == 1, read


@pytest.mark.parametrize("recipe", ["smurfs", "smurfs_tiny", "smurfs_react", "smurfs_dfsdt"])
def test_no_search_is_cut_off_by_the_limit_of_agent_calls(recipe):
    """What is cut off is left out of the means, which the systems that search on would then seem better by."""
    mas = composed(f"+recipe={recipe}").mas
    workflow = mas.workflow
    if workflow._target_.endswith(".Smurfs"):  # tool check, planner, final; five a step, and an answer from the memory
        most = 3 + workflow.max_tasks * (5 * workflow.max_calls + 1)
    else:  # DFSDT: each tool call, and each way back from it
        most = 2 * workflow.budget + 1
    assert most <= mas.limits.max_calls


def test_misspelt_key_in_a_recipe_file_is_named(tmp_path):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "typo.yaml").write_text(
        "# @package _global_\ndefaults: [/recipe/mhgpo_tiny@_global_, _self_]\ndata: {train_batch_sise: 4}\n"
    )
    with pytest.raises(ValueError, match="data.train_batch_sise; did you mean 'train_batch_size'"):
        composed("+recipe=typo", config_dir=str(tmp_path))


def test_key_added_on_purpose_passes():
    assert composed("+recipe=mhgpo_tiny", "+actor_rollout_ref.actor.note=mine").actor_rollout_ref.actor.note == "mine"
    assert composed("+recipe=mhgpo_tiny", "+trainer.notes.mine=1").trainer.notes.mine == 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["mas.sampling.strategy=fofo"],
            "mas.sampling.strategy='fofo' is unknown; did you mean 'fof'? (allowed: fof, ",
        ),
        (["+mas.sampling.stategy=fof"], "unknown key mas.sampling.stategy; did you mean 'strategy'"),
        (["+mas.agents.rewriterr.max_tokens=3"], "unknown key mas.agents.rewriterr; did you mean 'rewriter'? (allowed"),
        (["mas.workflow._target_=verl_ext.nothing.Here"], "cannot be imported"),
        (["+mas.workflow.promts=full"], "unknown key mas.workflow.promts; did you mean 'prompts'? (allowed: penalties"),
        (["mas.workflow.prompts=short"], "mas.workflow.prompts='short' is unknown; allowed: faithful, tiny"),
        (["mas.credit.aggregate=median"], "allowed: mean, max, min"),
        (["algorithm.adv_estimator=mhpgo"], "algorithm.adv_estimator='mhpgo' is unknown"),
        (["actor_rollout_ref.actor.ppo_mini_batch_size=7"], "must be a multiple of ppo_mini_batch_size=7"),
        (["actor_rollout_ref.actor.optim.lr=-0.1"], "actor_rollout_ref.actor.optim.lr=-0.1 must be at least 0"),
        (["data.train_batch_size=0"], "data.train_batch_size=0 must be at least 1"),
        (["data.train_batch_size=3.5"], "data.train_batch_size=3.5 must be a whole number"),
        (["trainer.save_freq=null"], "trainer.save_freq=None must be a whole number"),
        (["data.train_max_samples=null"], "data.train_max_samples=None must be a whole number"),
        (["trainer.n_gpus_per_node=0"], "trainer.n_gpus_per_node=0 must be at least 1"),
        (
            ["+mas.policies.small={agents:[rewriter],actor:{ppo_epochs:null},model:{lora_rank:-1}}"],
            "mas.policies.small.actor.ppo_epochs=None must be a whole number\n"
            "mas.policies.small.model.lora_rank=-1 must be at least 0",
        ),
        (["actor_rollout_ref.actor.optim.lr=small"], "actor_rollout_ref.actor.optim.lr='small' must be a number"),
        (["actor_rollout_ref.rollout.temperature=null"], "rollout.temperature=None must be a number"),
        # Names that verl looks up while it runs.
        (["actor_rollout_ref.rollout.name=vlm"], "rollout.name='vlm' is unknown; did you mean 'vllm'? (allowed: hf, "),
        (["actor_rollout_ref.actor.policy_loss.loss_mode=gpso"], "loss_mode='gpso' is unknown; did you mean 'gspo'?"),
        (["actor_rollout_ref.actor.kl_loss_type=k4"], "actor_rollout_ref.actor.kl_loss_type='k4' is unknown"),
        (["trainer.resume_mode=never"], "trainer.resume_mode='never' is unknown (allowed: auto, disable, resume_path)"),
        (["trainer.logger=[console,wandbb]"], "trainer.logger='wandbb' is unknown; did you mean 'wandb'?"),
        (["trainer.v1.trainer_mode=null"], "trainer.v1.trainer_mode=None is a trainer of verl that knows nothing of"),
        (["trainer.v1.sampler.max_off_policy_strategy=late"], "max_off_policy_strategy='late' is unknown (allowed: d"),
        (
            ["algorithm.rollout_correction.rollout_is=row"],
            "rollout_is='row' is unknown (allowed: null, token, sequence",
        ),
        (
            ["algorithm.rollout_correction.rollout_is=token", "algorithm.rollout_correction.rollout_is_threshold=null"],
            "rollout_is_threshold=None must be above 0: it bounds the weights of rollout_is=token",
        ),
        (
            ["actor_rollout_ref.rollout.checkpoint_engine.backend=object_store"],
            "checkpoint_engine.backend='object_store' is unknown (allowed: naive, nccl",
        ),
        # verl's numbers by their types there, and sections that are none.
        (["actor_rollout_ref.actor.clip_ratio=x"], "actor_rollout_ref.actor.clip_ratio='x' must be a number"),
        (["actor_rollout_ref.actor.grad_clip=nan"], "actor_rollout_ref.actor.grad_clip=nan must be a number"),
        (["actor_rollout_ref.actor.use_kl_loss=no"], "actor_rollout_ref.actor.use_kl_loss='no' must be true or false"),
        (["actor_rollout_ref.actor.ppo_max_token_len_per_gpu=null"], "ppo_max_token_len_per_gpu=None must be a whole"),
        (["actor_rollout_ref.actor.clip_ratio=-0.2"], "actor_rollout_ref.actor.clip_ratio=-0.2 must be at least 0"),
        (["actor_rollout_ref.model.lora_alpha=0", "+base=lora"], "model.lora_alpha=0 must be at least 1"),
        (["actor_rollout_ref.rollout.max_num_seqs=0"], "actor_rollout_ref.rollout.max_num_seqs=0 must be at least 1"),
        (["actor_rollout_ref.rollout.top_p=0"], "actor_rollout_ref.rollout.top_p=0 must be above 0 and at most 1"),
        (["actor_rollout_ref.rollout.nnodes=null"], "actor_rollout_ref.rollout.nnodes=None must be a whole number"),
        (["trainer.total_training_steps=many"], "trainer.total_training_steps='many' must be a whole number"),
        (["trainer.v1.separate_async.num_warmup_batches=-1"], "num_warmup_batches=-1 must be at least 0"),
        (
            ["+mas.policies.small={agents:[rewriter],rollout:{max_num_seqs:x}}"],
            "small.rollout.max_num_seqs='x' must be",
        ),
        (["actor_rollout_ref.rollout.agent=null"], "actor_rollout_ref.rollout.agent=None must be a section"),
        (["algorithm=null"], "algorithm=None must be a section with keys"),
        (["algorithm.rollout_correction=null"], "algorithm.rollout_correction=None must be a section with keys"),
        (
            ["actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"],
            "=2 shares a row among ranks, which verl does for",
        ),
        (["actor_rollout_ref.rollout.n=1"], "group_size=1: algorithm.adv_estimator=mhgpo compares the samples of a"),
        (
            ["mas.prepare._target_=verl_ext.worlds.nothing"],
            "mas.prepare._target_='verl_ext.worlds.nothing' names no fun",
        ),
        (["+mas.prepare.output=x"], "unknown key mas.prepare.output; did you mean 'output_dir'"),
        (["algorithm.adv_estimator=rloo"], "those of different agents (rewriter, reranker, answerer); it is for"),
        (
            ["algorithm.adv_estimator=gae"],
            "no model is chosen for it (critic.model.path=~/models/deepseek-llm-7b-chat is",
        ),
        (["algorithm.adv_estimator=gpg"], "counts padding rows as samples"),
        (["algorithm.adv_estimator=gdpo"], "needs inputs that verl's V1 trainer does not give it"),
        # Combinations that would train something else than what they say.
        (["algorithm.adv_estimator=grpo", "mas.sampling.strategy=rr"], "Remedy: mas.sampling.strategy=fof"),
        (
            [
                "+base=lora",
                "actor_rollout_ref.model.lora.merge=false",
                "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
            ],
            "backend=nccl sends the frozen base and never the LoRA adapter",
        ),
        (["trainer.v1.trainer_mode=sync"], "trainer.v1.trainer_mode=sync is a trainer of verl that knows nothing of"),
        (["trainer.v1.trainer_mode=separate_async"], "Allowed: mas_sync, mas_colocate_async, mas_sep"),
        (["mas.deterministic=true", "trainer.v1.trainer_mode=mas_colocate_async"], "mas.deterministic=true needs"),
        (["mas.deterministic=true", "actor_rollout_ref.rollout.name=vllm"], "needs actor_rollout_ref.rollout.name=hf"),
        (
            ["mas.deterministic=true", "actor_rollout_ref.rollout.agent.num_workers=2"],
            "agent.num_workers=0 or 1 (given: 2)",
        ),
        (["mas.deterministic=true", "mas.sampling.seeded=false"], "Remedy: mas.sampling.seeded=true"),
        (["actor_rollout_ref.rollout.full_determinism=true", "mas.sampling.seeded=false"], "the same noise"),
    ],
)
def test_bad_values_and_combinations_say_what_is_wrong(overrides, message):
    config = composed("+recipe=mhgpo_tiny", *overrides)
    with pytest.raises(ValueError) as error:
        check_numbers(config)
        check_multi_agent(config)
    assert message in str(error.value)


def test_a_workflow_that_names_its_setting_is_told_without_a_traceback():
    report = examined("+recipe=mhgpo_tiny", "mas.workflow.penalties.max_queries=-1")
    assert report.problems == ["mas.workflow.penalties.max_queries=-1 must be at least 0"]


def test_null_is_a_number_where_verl_has_a_default_for_it_and_a_range_may_be_a_text():
    free = ["trainer.max_actor_ckpt_to_keep=null", "trainer.total_training_steps=null", "data.seed=null"]
    free += ["trainer.v1.sampler.max_off_policy_threshold=null", "actor_rollout_ref.rollout.max_model_len=null"]
    check_numbers(composed("+recipe=mhgpo_tiny", *free, "algorithm.rollout_correction.rollout_is_threshold=0.5_2.0"))


def test_estimators_of_systems_of_one_agent_and_of_the_user(monkeypatch):
    alone = ["mas.workflow._target_=tests.trainer.test_recipes.Alone", *[f"~mas.agents.{name}" for name in AGENTS]]
    for choice in ("algorithm.adv_estimator=rloo", "+base=grpo", "algorithm.adv_estimator=mhgpo", "+base=critic"):
        check_multi_agent(composed("+recipe=mhgpo_tiny", choice, *alone))
    monkeypatch.setitem(ADV_ESTIMATOR_REGISTRY, "of_mine", lambda *args, **kwargs: None)
    check_multi_agent(composed("+recipe=mhgpo_tiny", "algorithm.adv_estimator=of_mine"))


class Alone(Workflow):
    """A system of one agent."""

    agents = {"only": Agent(lambda question: [{"role": "user", "content": question}])}

    def __init__(self, **_):
        pass

    async def run(self, task, ctx):
        return await ctx.call("only", question=task.question)

    def reward(self, task, result):
        return 0.0, {}


def test_the_module_of_a_workflow_may_bring_a_strategy_an_algorithm_and_an_aggregation(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from verl_ext.algorithms import Algorithm, register_algorithm\n"
        "from verl_ext.mas.credit import AGGREGATES\n"
        "from verl_ext.recipe.mhgpo import SearchQA\n"
        "from verl_ext.sampling import STRATEGIES\n"
        "from verl_ext.sampling.fof import ForkOnFirst\n"
        "@register_algorithm\n"
        "class Twice(Algorithm):\n"
        "    name = 'mine'\n"
        "    def advantages(self, rows, config): return rows.mask * 2.0\n"
        "AGGREGATES['last'] = lambda values: list(values)[-1]\n"
        "STRATEGIES['mine'] = ForkOnFirst\n"
        "class Mine(SearchQA): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    own = ["mas.workflow._target_=mine.Mine", "algorithm.adv_estimator=mine", "mas.sampling.strategy=mine"]
    try:
        assert check_multi_agent(composed("+recipe=mhgpo_tiny", *own, "mas.credit.aggregate=last")) == "f1"
        register_estimators()
        tag = {
            "group": "g",
            "agent": "a",
            "question": "q",
            "trajectory": "t",
            "response_len": 3,
            "order": ["s", 0, 0, 0],
        }
        tag |= {"actions": [], "decides": False, "failed": False, "metrics": {}, "outcome": 1.0, "reward": 1.0}
        with batch_of([tag], make_algorithm("mine", {})):
            mask = torch.ones(1, 3)
            advantages, _ = ADV_ESTIMATOR_REGISTRY["mine"](token_level_rewards=mask, response_mask=mask)
        assert advantages.tolist() == [[2.0, 2.0, 2.0]]
    finally:
        for registry in (ALGORITHMS, AGGREGATES, STRATEGIES, ADV_ESTIMATOR_REGISTRY):
            registry.pop("mine", None)
        AGGREGATES.pop("last", None)
