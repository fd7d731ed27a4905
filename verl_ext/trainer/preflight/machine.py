"""What a run needs of the machine that starts it: packages, GPUs, Ray's logical CPUs."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from verl_ext.trainer import modes
from verl_ext.trainer.lora_setup import decides
from verl_ext.trainer.policies.settings import policy_configs
from verl_ext.trainer.preflight.checks import ATTENTION, FLASH, trains_critic

TINY = "+recipe=mhgpo_tiny and the others in …_tiny run on any machine, without GPU and without downloads"


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
    critic, policies = trains_critic(config), policy_configs(config).values()
    asked = {OmegaConf.select(own, ATTENTION) or FLASH for own in policies}
    flash = trainer.device == "cuda" and (critic or FLASH in asked)
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
    """Check that Ray is given as many logical CPUs as the run takes, and as many GPUs (on the CPU: logical ones).

    Raises:
        ValueError: `ray_kwargs.ray_init.num_cpus` or `num_gpus` is set to fewer.
    """
    given, needed = config.ray_kwargs.ray_init.num_cpus, sum(logical_cpus(config).values())
    if given is not None and given < needed:
        raise ValueError(
            f"ray_kwargs.ray_init.num_cpus={given} is too small; {_shares(config)}. Ray would wait for ever.\n"
            f"Remedy: ray_kwargs.ray_init.num_cpus={needed} or more (logical: no need for as many cores)."
        )
    gpus = OmegaConf.select(config, "ray_kwargs.ray_init.num_gpus")
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node + modes.rollout_ranks(config)
    if isinstance(gpus, int) and gpus < ranks:
        raise ValueError(
            f"ray_kwargs.ray_init.num_gpus={gpus} is too small: the run has {ranks} rank(s), of which each takes one. "
            "Remedy: leave it out"
        )
