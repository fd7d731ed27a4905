"""Checks of a run before it starts. A failure is a `ValueError`: what is wrong, given and allowed values, remedy."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import hydra
from hydra.utils import get_class, get_object
from omegaconf import DictConfig, OmegaConf

from verl_ext.algorithms import System
from verl_ext.mas.credit import aggregate
from verl_ext.mas.workflow import Workflow
from verl_ext.observe import spans
from verl_ext.rewards.judge import Judge
from verl_ext.settings import unknown_key
from verl_ext.tools.threads import run_blocking
from verl_ext.tracebacks import place_of
from verl_ext.trainer import modes
from verl_ext.trainer.build import build_workflow, check_arguments, similarity_of
from verl_ext.trainer.config import optimiser_steps, read_mas_config, strategy_from
from verl_ext.trainer.lora_setup import check_policy, decides
from verl_ext.trainer.policies.settings import policy_configs
from verl_ext.trainer.preflight.algorithm import check_algorithm, check_groups
from verl_ext.trainer.state.best import check_saving

# Sections in which every key is allowed: verl passes them on unchanged.
OPEN = ("hydra", "mas", "ray_kwargs.ray_init", "reward.custom_reward_function.reward_kwargs")
# TransferQueue's own, which verl passes on.
QUEUE_NODES = "transfer_queue.backend.SimpleStorage.required_node_resource"
# Our own keys in verl's sections.
OWN = ("actor_rollout_ref.model.lora.adapters", "actor_rollout_ref.model.lora.start", "trainer.keep_best", QUEUE_NODES)
# verl's default of critic.model.path.
VERLS_CRITIC = "~/models/deepseek-llm-7b-chat"
ATTENTION = "actor_rollout_ref.model.override_config.attn_implementation"
FLASH = "flash_attention_2"  # the package flash_attn; verl's default
FACTORY = (
    ". {place} must be a factory: its arguments are the settings of the section, and it returns the tool. Remedy: set "
    "the argument in the section; or, if the function is the tool itself: +mas.tools.{name}._partial_=true"
)
TINY = "+recipe=mhgpo_tiny and the others in …_tiny run on any machine, without GPU and without downloads"


def check_keys_known(config: DictConfig, overrides: list[str]) -> None:
    """Refuse keys that verl's own configuration does not have.

    Hydra checks overrides of the command line, but a misspelt key inside a recipe file is silently accepted. Keys added
    on the command line with `+` are the user's explicit wish and pass.

    Raises:
        ValueError: names the key and the closest known one.
    """
    given = OmegaConf.to_container(config, resolve=False)
    added = [one.lstrip("+").partition("=")[0] for one in overrides if one.startswith("+")]
    if unknown := _unknown(given, _stock(), "", (*OPEN, *OWN, *added)):
        raise ValueError("\n".join(unknown))


@functools.cache
def _stock() -> Any:
    """verl's own configuration."""
    return OmegaConf.to_container(hydra.compose("ppo_trainer"), resolve=False)


def _unknown(given: Any, stock: Any, path: str, allowed: tuple[str, ...]) -> list[str]:
    target = stock.get("_target_")
    cls = get_class(target) if isinstance(target, str) else None
    known = [*stock, *(field.name for field in dataclasses.fields(cls))] if dataclasses.is_dataclass(cls) else [*stock]
    problems = []
    for key, value in given.items():
        place = f"{path}{key}"
        if place in allowed or any(one.startswith(f"{place}.") and key not in known for one in allowed):
            continue
        if key not in known:
            message = unknown_key(key, map(str, known), path.rstrip("."))
            problems.append(f"{message}; to add it on purpose: +{place}=… on the command line")
        elif isinstance(value, dict) and isinstance(stock.get(key), dict) and stock[key]:
            problems += _unknown(value, stock[key], f"{place}.", allowed)
    return problems


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
    """Check `mas`, sampling, estimator, policy, batch and learning rates; return the workflow's headline.

    Raises:
        ValueError: see `read_mas_config`, `build_workflow`, `check_arguments`, `similarity_of`, `strategy_from`,
            `check_policy`, `optimiser_steps`; a temperature of 0, a negative learning rate.
    """
    mas = read_mas_config(config)
    workflow = build_workflow(mas)
    if mas.prepare is not None:
        check_arguments(mas.prepare, "mas.prepare")
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
        raise ValueError(f"no agent of this system trains. {workflow.no_trained_agents_hint}")
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
    if trains_critic(config) and config.critic.model.path == VERLS_CRITIC:
        raise ValueError(
            f"{place}algorithm.adv_estimator={config.algorithm.adv_estimator} trains a critic, and no model is chosen "
            f"for it (critic.model.path={VERLS_CRITIC} is verl's default). Remedy: +base=critic, or critic.model.path=…"
        )
    for name in ("actor_rollout_ref.actor", *(["critic"] if trains_critic(config) else [])):
        section = OmegaConf.select(config, name)
        optimiser_steps(config, section)
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
        settings = {key: value for key, value in section.items() if not key.startswith("_")}
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


def check_resources(config: DictConfig) -> None:
    """Check accelerators, Ray's logical CPUs, and the packages that the rollout engine needs.

    Raises:
        ValueError: something is missing on this machine; names what, and the recipe to use instead.
    """
    check_logical_cpus(config)
    if found := lacking(config):
        raise ValueError("\n".join(found if config.trainer.device == "cpu" else [*found, f"Without GPUs: {TINY}."]))


def lacking(config: DictConfig) -> list[str]:
    """What this machine lacks to run the configuration, each with its remedy: packages, GPUs, cores."""
    import torch
    from ray._private.utils import get_num_cpus  # what `ray.init` counts by default, a container's quota included

    trainer, engine, local = config.trainer, config.actor_rollout_ref.rollout.name, not joins_cluster(config)
    critic = trains_critic(config)
    flash = trainer.device == "cuda" and (critic or (OmegaConf.select(config, ATTENTION) or FLASH) == FLASH)
    instead = "; verl loads critics with nothing else" if critic else f", or without it: {without_flash(config)}"
    given, pool, wanted = torch.cuda.device_count(), modes.rollout_ranks(config), trainer.n_gpus_per_node
    cores, needed = get_num_cpus(override_docker_cpu_warning=True), sum(logical_cpus(config).values())
    counted = local and config.ray_kwargs.ray_init.num_cpus is None and trainer.nnodes == 1
    found = {
        f"actor_rollout_ref.rollout.name={engine}, but the package {engine} is not installed; the recipe is for "
        f"{trainer.nnodes} × {wanted} GPUs (trainer.nnodes × n_gpus_per_node).\nRemedy: pip install -e '.[gpu]' on "
        "such a machine.": (engine in ("vllm", "sglang") and importlib.util.find_spec(engine) is None),
        "the package flash_attn, with which verl trains on GPUs by default, is not installed.\nRemedy: install "
        f"as docs/scaling.md says{instead}": (flash and importlib.util.find_spec("flash_attn") is None),
        f"trainer.n_gpus_per_node={wanted}{modes.and_pool(config)}, but this machine has {given} GPU(s).\n"
        f"Remedy: trainer.n_gpus_per_node={max(given - pool, 1)} with a model that fits; on a Ray cluster start on its "
        "head node with RAY_ADDRESS=auto.": local and trainer.device != "cpu" and given < wanted + pool,
        f"Ray counts this machine's {cores} core(s) as logical CPUs; {_shares(config)}. It would wait for ever.\n"
        f"Remedy: ray_kwargs.ray_init.num_cpus={needed} (logical: no need for as many cores).": (
            counted and cores < needed
        ),
    }
    return [message for message, lacks in found.items() if lacks]


def without_flash(config: DictConfig) -> str:
    """Overrides with which a run needs no flash_attn.

    verl takes log-probabilities from flash_attn's kernel, too. Without it, it goes token by token and keeps the logits
    three times; its fused head keeps those of 512 tokens. Decisions need whole logits, which that head has not.
    """
    found = [f"++{ATTENTION}=packed_sdpa"]
    if not config.actor_rollout_ref.model.use_remove_padding:
        found.append("actor_rollout_ref.model.use_remove_padding=true")
    if not (config.actor_rollout_ref.model.use_fused_kernels or decides(config)):
        found.append("actor_rollout_ref.model.use_fused_kernels=true")
    return " ".join(found)


def joins_cluster(config: DictConfig) -> bool:
    """True if `ray.init` would join a running Ray: a given one, or the one that `ray start` has written down."""
    if not (address := OmegaConf.select(config, "ray_kwargs.ray_init.address") or os.environ.get("RAY_ADDRESS")):
        return (Path(tempfile.gettempdir()) / "ray" / "ray_current_cluster").exists()
    return bool(address != "local")


def logical_cpus(config: DictConfig) -> dict[str, int]:
    """The logical CPUs of Ray that each part of the run takes."""
    each = max(3, len(config.mas.get("policies") or ()))  # worker groups that may share a GPU
    return modes.logical_cpus(config) | {
        f"ranks ({each} each)": each * config.trainer.nnodes * config.trainer.n_gpus_per_node,
        "trainer": 2,
        "TransferQueue": config.transfer_queue.backend.SimpleStorage.num_data_storage_units,
        "rollout workers": config.actor_rollout_ref.rollout.agent.num_workers,
    }


def _shares(config: DictConfig) -> str:
    needed = logical_cpus(config)
    return f"{sum(needed.values())} are taken: {', '.join(f'{name} {number}' for name, number in needed.items())}"


def check_logical_cpus(config: DictConfig) -> None:
    """Check that Ray is given as many logical CPUs as the run takes.

    Raises:
        ValueError: `ray_kwargs.ray_init.num_cpus` is set to fewer.
    """
    given, needed = config.ray_kwargs.ray_init.num_cpus, sum(logical_cpus(config).values())
    if given is not None and given < needed:
        raise ValueError(
            f"ray_kwargs.ray_init.num_cpus={given} is too small; {_shares(config)}. Ray would wait for ever.\n"
            f"Remedy: ray_kwargs.ray_init.num_cpus={needed} or more (logical: no need for as many cores)."
        )
