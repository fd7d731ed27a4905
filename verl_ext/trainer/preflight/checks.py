"""Checks of a configuration before the start. A failure is a `ValueError`: what is wrong, given, allowed, remedy."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from verl_ext.algorithms import System
from verl_ext.mas.credit import aggregate
from verl_ext.mas.workflow import Workflow
from verl_ext.observe import spans
from verl_ext.rewards.judge import Judge
from verl_ext.tools.threads import run_blocking
from verl_ext.tracebacks import place_of
from verl_ext.trainer.build import build_workflow, check_arguments, similarity_of
from verl_ext.trainer.config import optimiser_steps, read_mas_config, strategy_from
from verl_ext.trainer.lora_setup import check_policy
from verl_ext.trainer.modes import SEPARATE, mode_of
from verl_ext.trainer.policies.settings import policy_configs
from verl_ext.trainer.preflight.algorithm import check_algorithm, check_groups
from verl_ext.trainer.preflight.values import ATTENTION, check_names
from verl_ext.trainer.sections import arguments_of
from verl_ext.trainer.state.best import check_saving

# verl's default of critic.model.path.
VERLS_CRITIC = "~/models/deepseek-llm-7b-chat"
FLASH = "flash_attention_2"  # the package flash_attn; verl's default
FACTORY = (
    ". {place} must be a factory: its arguments are the settings of the section, and it returns the tool. Remedy: set "
    "the argument in the section; or, if the function is the tool itself: +mas.tools.{name}._partial_=true"
)


def check_sampled(workflow: Workflow, greedy: bool, remedy: str) -> None:
    """Check that a validation or an evaluation is not greedy where that makes parallel parts of a system copies.

    Raises:
        ValueError: it is; `remedy` says how it would be sampled.
    """
    if workflow.needs_sampling and greedy:
        raise ValueError(
            f"the parallel parts of {type(workflow).__name__} (mas.workflow.width) differ by sampling alone: greedy "
            f"answers would be copies of one, and their vote none. Remedy: {remedy}"
        )


def check_multi_agent(config: DictConfig) -> str:
    """Check `mas`, names, sampling, estimator, policy, batch and learning rates; return the workflow's headline.

    The configuration must have passed `check_numbers`.

    Raises:
        ValueError: see `read_mas_config`, `check_names`, `build_workflow`, `check_arguments`, `similarity_of`,
            `strategy_from`, `check_policy`, `optimiser_steps`; a temperature of 0, a negative learning rate.
    """
    mas = read_mas_config(config)
    check_names(config)
    _check_batches(config)
    workflow = build_workflow(mas)
    if mas.prepare is not None:
        _check_prepare(mas.prepare)
    aggregate(mas.credit.aggregate)
    if mas.tracing.otel:
        spans.library()
    if mas.memory is not None:
        similarity_of(mas.memory.encoder)
    validation = config.actor_rollout_ref.rollout.val_kwargs
    place = "actor_rollout_ref.rollout.val_kwargs"
    remedy = f"{place}.do_sample=true {place}.temperature=1.0, or mas.workflow.width=1"
    check_sampled(workflow, not (validation.do_sample and validation.temperature > 0), remedy)
    agents = workflow.trained_agents
    if not agents and config.trainer.get("val_only", False):
        return workflow.headline
    if not agents:
        frozen = [name for name, section in mas.policies.items() if section.frozen]
        thaw = f"Remedy: mas.policies.<name>.frozen=false for one of {', '.join(frozen)}, which are frozen"
        raise ValueError(f"no agent of this system trains. {thaw if frozen else workflow.no_trained_agents_hint}")
    temperature = config.actor_rollout_ref.rollout.temperature
    if not temperature > 0:
        raise ValueError(
            f"actor_rollout_ref.rollout.temperature={temperature} must be above 0: outputs are sampled, and the "
            "trainer divides by it. Greedy outputs are those of the validation, or of verl_ext evaluate"
        )
    check_saving(config)
    strategy_from(mas.sampling, agents)
    reports = [workflow.headline, *workflow.details]
    system = System(type(workflow).__name__, agents, mas.sampling.strategy, reports)
    check_algorithm(config.algorithm.adv_estimator, mas.advantage, system)
    if not config.trainer.get("val_only", False):
        check_groups(config.algorithm.adv_estimator, mas.sampling)
    for policy, own in policy_configs(config).items():
        its = read_mas_config(own)
        check_policy(own, its, build_workflow(its).policy_agents)
        _check_training(own, f"mas.policies.{policy}: " if policy else "")
    return workflow.headline


def _check_batches(config: DictConfig) -> None:
    """Check how verl takes questions from the data set, which it would refuse at the first step."""
    given, questions = config.data.get("gen_batch_size"), config.data.train_batch_size
    if given and questions % given and mode_of(config) != SEPARATE:  # which takes them one by one
        raise ValueError(
            f"data.train_batch_size={questions} must be a multiple of data.gen_batch_size={given}, in which questions "
            "are taken from the data set. Remedy: leave data.gen_batch_size out"
        )


def _check_prepare(section: dict[str, Any]) -> None:
    """Check that the function that `mas.prepare` names is there, and takes its arguments."""
    target: Any = section.get("_target_")
    try:
        get_object(target)
    except Exception as error:
        raise ValueError(
            f"mas.prepare._target_={target!r} names no function: {error}. Remedy: mas.prepare=null, or e.g. "
            "mas.prepare._target_=verl_ext.worlds.biographies.ensure"
        ) from None
    check_arguments(section, "mas.prepare")


def _check_training(config: DictConfig, place: str) -> None:
    """Check batch, attention, learning rates and critic of the policy of this configuration; `place` begins messages.

    Raises:
        ValueError: see `optimiser_steps`; a negative learning rate, no model for the critic, or parts of a row on
            several ranks without flash_attn.
    """
    actor, attention = config.actor_rollout_ref.actor, OmegaConf.select(config, ATTENTION) or FLASH
    parallel = max(actor.ulysses_sequence_parallel_size, actor.fsdp_config.ulysses_sequence_parallel_size)
    if parallel > 1 and not attention.startswith("flash_"):
        raise ValueError(
            f"{place}actor_rollout_ref.actor.ulysses_sequence_parallel_size={parallel} shares a row among ranks, which "
            f"verl does for flash_attn alone: with {ATTENTION}={attention} a token would not see what other ranks "
            f"hold.\nRemedy: actor_rollout_ref.actor.ulysses_sequence_parallel_size=1, or {ATTENTION}={FLASH}"
        )
    model = config.actor_rollout_ref.model
    if model.lora_rank > 0 and model.target_modules is not None and not model.target_modules:
        raise ValueError(
            f"{place}actor_rollout_ref.model.target_modules={model.target_modules!r} leaves no layer to LoRA "
            f"(lora_rank={model.lora_rank}). Remedy: actor_rollout_ref.model.target_modules=all-linear"
        )
    if trains_critic(config) and config.critic.model.path == VERLS_CRITIC:
        raise ValueError(
            f"{place}algorithm.adv_estimator={config.algorithm.adv_estimator} trains a critic, and no model is chosen "
            f"for it (critic.model.path={VERLS_CRITIC} is verl's default). Remedy: +base=critic, or critic.model.path=…"
        )
    for name in ("actor_rollout_ref.actor", *(["critic"] if trains_critic(config) else [])):
        section = OmegaConf.select(config, name)
        try:
            optimiser_steps(config, section)
        except ValueError as error:
            raise ValueError(f"{place}{error}") from None
        if not section.optim.lr >= 0:
            raise ValueError(f"{place}{name}.optim.lr={section.optim.lr} must be at least 0")


def trains_critic(config: DictConfig) -> bool:
    """Whether verl would train a critic, without its warning that there is none."""
    from verl.trainer.ppo.utils import need_critic

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return need_critic(config)


def check_tools(config: DictConfig) -> None:
    """Check the settings of the tools, and ask tools that have a `preflight` whether they would work.

    Raises:
        ValueError: names the section and what is wrong with it.
    """
    for name, section in read_mas_config(config).tools.items():
        settings = arguments_of(section)
        try:
            target = get_object(section["_target_"])
            if section.get("_partial_") or inspect.iscoroutinefunction(target):  # the tool itself, see `build_tools`
                inspect.signature(target).bind_partial(**settings)
                continue
            inspect.signature(target).bind(**settings)
            getattr(target, "preflight", lambda **_: None)(**settings)
        except Exception as error:
            missing = isinstance(error, TypeError) and "missing a required argument" in str(error)
            factory = FACTORY.format(place=place_of(target), name=name) if missing else ""
            raise ValueError(f"mas.tools.{name}: {error}{factory}") from error


def check_judge(config: DictConfig) -> None:
    """Ask the judge's server whether it answers, if the reward asks a judge.

    Raises:
        ValueError: it does not; or see `build_workflow`.
    """
    judge = build_workflow(read_mas_config(config)).judge
    if judge is not None:
        run_blocking(_find_model(judge))


async def _find_model(judge: Judge) -> None:
    try:
        await judge.chat.find_model()
    finally:
        await judge.close()
