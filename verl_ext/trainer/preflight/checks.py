"""Checks of a run before it starts. Every failure is a `ValueError` that says what, given, allowed and remedy."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import inspect
import os
import tempfile
from pathlib import Path
from typing import Any

import hydra
from hydra.utils import get_class, get_object
from omegaconf import DictConfig, OmegaConf

from verl_ext.algorithms import System
from verl_ext.mas.credit import aggregate
from verl_ext.trainer.config import optimiser_steps, read_mas_config, strategy_from
from verl_ext.trainer.lora_setup import check_policy
from verl_ext.trainer.preflight.algorithm import check_algorithm
from verl_ext.trainer.workflow import build_workflow, similarity_of

# Sections where any key is legal: they are handed to somebody else as they are.
OPEN = ("hydra", "mas", "ray_kwargs.ray_init", "reward.custom_reward_function.reward_kwargs")
# Ours, among verl's.
OWN = ("actor_rollout_ref.model.lora.adapters",)
TINY = "+recipe=mhgpo_tiny and the others in …_tiny run on any machine, without GPU and without downloads"


def check_keys_known(config: DictConfig, overrides: list[str]) -> None:
    """Refuse keys that verl's own configuration does not have.

    Hydra checks overrides of the command line, but a misspelt key inside a recipe file is silently accepted. Keys added
    on the command line with `+` are the user's explicit wish and pass.

    Raises:
        ValueError: names the key and the closest known one.
    """
    stock = OmegaConf.to_container(hydra.compose("ppo_trainer"), resolve=False)
    given = OmegaConf.to_container(config, resolve=False)
    wished = [o.lstrip("+").partition("=")[0] for o in overrides if o.startswith("+")]
    unknown = _unknown(given, stock, "", (*OPEN, *OWN, *wished))
    if unknown:
        raise ValueError("\n".join(unknown))


def _unknown(given: dict[str, Any], stock: dict[str, Any], path: str, allowed: tuple[str, ...]) -> list[str]:
    known = [*stock, *_fields(stock.get("_target_"))]
    problems = []
    for key, value in given.items():
        place = f"{path}{key}"
        if place in allowed or any(wish.startswith(f"{place}.") and key not in known for wish in allowed):
            continue
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {path}{close[0]}?" if close else f"known there: {', '.join(map(str, known))}"
            problems.append(f"unknown key {place}: {hint} (to add it on purpose: +{place}=… on the command line)")
        elif isinstance(value, dict) and isinstance(stock.get(key), dict) and stock[key]:
            problems += _unknown(value, stock[key], f"{place}.", allowed)
    return problems


def _fields(target: Any) -> list[str]:
    """Fields of the dataclass that a section is turned into."""
    if not isinstance(target, str):
        return []
    cls = get_class(target)
    return [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []


def check_multi_agent(config: DictConfig) -> str:
    """Check `mas`, temperature, strategy, estimator, policy and batch arithmetic; return the workflow's headline.

    Raises:
        ValueError: a temperature of 0; see `read_mas_config`, `build_workflow`, `similarity_of`, `strategy_from`,
            `check_policy`, `optimiser_steps`.
    """
    mas = read_mas_config(config)
    workflow = build_workflow(mas)
    aggregate(mas.credit.aggregate)
    if mas.memory is not None:
        similarity_of(mas.memory.encoder)
    agents = workflow.trained_agents
    if not agents and config.trainer.get("val_only", False):
        return workflow.headline
    if not agents:
        raise ValueError(f"no agent of this system trains. {workflow.no_trained_agents_hint}")
    temperature = config.actor_rollout_ref.rollout.temperature
    if not temperature > 0:
        raise ValueError(
            f"actor_rollout_ref.rollout.temperature={temperature} must be above 0: outputs are sampled, and the "
            "trainer divides by it. Greedy outputs are those of the validation, or of python -m verl_ext.evaluate"
        )
    strategy_from(mas.sampling, agents)
    reports = [workflow.headline, *workflow.details]
    system = System(type(workflow).__name__, agents, mas.sampling.strategy, reports)
    check_algorithm(config.algorithm.adv_estimator, mas, system)
    check_policy(config, mas, workflow.policy_agents)
    optimiser_steps(config, config.actor_rollout_ref.actor)
    if config.algorithm.adv_estimator == "gae":
        optimiser_steps(config, config.critic)
    return workflow.headline


def check_tools(config: DictConfig) -> None:
    """Check the settings of the tools, and ask those that can tell (`preflight`) whether they would work.

    Raises:
        ValueError: names the section and what is wrong with it.
    """
    for name, section in read_mas_config(config).tools.items():
        settings = {key: value for key, value in section.items() if not key.startswith("_")}
        try:
            target = get_object(section["_target_"])
            inspect.signature(target).bind(**settings)
            getattr(target, "preflight", lambda **_: None)(**settings)
        except Exception as error:
            raise ValueError(f"mas.tools.{name}: {error}") from error


def check_resources(config: DictConfig) -> None:
    """Check accelerators, Ray's logical CPUs, and the packages that the rollout engine needs.

    Raises:
        ValueError: something is missing on this machine; names what, and the recipe to use instead.
    """
    check_logical_cpus(config)
    found = lacking(config)
    if found:
        raise ValueError("\n".join(found if config.trainer.device == "cpu" else [*found, f"Without GPUs: {TINY}."]))


def lacking(config: DictConfig) -> list[str]:
    """What this machine lacks to run the configuration, each with its remedy: packages, GPUs, cores."""
    trainer, engine = config.trainer, config.actor_rollout_ref.rollout.name
    found = []
    if engine in ("vllm", "sglang") and importlib.util.find_spec(engine) is None:
        found.append(
            f"actor_rollout_ref.rollout.name={engine}, but the package {engine} is not installed; the recipe is for "
            f"{trainer.nnodes} machine(s) with {trainer.n_gpus_per_node} GPU(s).\n"
            "Remedy: pip install -e '.[gpu]' on such a machine."
        )
    attention = OmegaConf.select(config, "actor_rollout_ref.model.override_config.attn_implementation")
    if trainer.device == "cuda" and attention in (None, "flash_attention_2"):
        if importlib.util.find_spec("flash_attn") is None:
            found.append(
                "the package flash_attn, with which verl trains on GPUs by default, is not installed.\nRemedy: the GPU "
                "installation of README.md, or +actor_rollout_ref.model.override_config.attn_implementation=sdpa with "
                "actor_rollout_ref.model.use_remove_padding=false (slower)."
            )
    return found if _joins_cluster(config) else [*found, *_lacking_devices(config)]


def _joins_cluster(config: DictConfig) -> bool:
    """Would `ray.init` join a Ray that runs already: a given one, or the one that `ray start` has written down?"""
    address = OmegaConf.select(config, "ray_kwargs.ray_init.address") or os.environ.get("RAY_ADDRESS")
    if not address:
        return (Path(tempfile.gettempdir()) / "ray" / "ray_current_cluster").exists()
    return address != "local"


def _lacking_devices(config: DictConfig) -> list[str]:
    import torch
    from ray._private.utils import get_num_cpus  # what `ray.init` counts by default, a container's quota included

    found, given = [], torch.cuda.device_count()
    if config.trainer.device != "cpu" and given < config.trainer.n_gpus_per_node:
        found.append(
            f"trainer.n_gpus_per_node={config.trainer.n_gpus_per_node}, but this machine has {given} GPU(s).\n"
            f"Remedy: trainer.n_gpus_per_node={max(given, 1)} with a model that fits; on a Ray cluster start on its "
            "head node with RAY_ADDRESS=auto."
        )
    cores, needed = get_num_cpus(override_docker_cpu_warning=True), sum(logical_cpus(config).values())
    if config.ray_kwargs.ray_init.num_cpus is None and config.trainer.nnodes == 1 and cores < needed:
        found.append(
            f"Ray counts this machine's {cores} core(s) as logical CPUs; {_shares(config)}. It would wait for ever.\n"
            f"Remedy: ray_kwargs.ray_init.num_cpus={needed} (logical: no need for as many cores)."
        )
    return found


def logical_cpus(config: DictConfig) -> dict[str, int]:
    """Ray's logical CPUs by what takes them."""
    return {
        "ranks (3 each)": 3 * config.trainer.nnodes * config.trainer.n_gpus_per_node,
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
