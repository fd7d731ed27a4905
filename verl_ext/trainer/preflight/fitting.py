"""Whether rows fit into token limits and models into the memory of a GPU: what `verl_ext check` says of it."""

from __future__ import annotations

import sys
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from omegaconf import DictConfig, OmegaConf

from verl_ext.trainer.config import read_mas_config
from verl_ext.trainer.policies.settings import PolicySection, given_at, in_verl, policy_configs, read_policies
from verl_ext.trainer.preflight import checks
from verl_ext.trainer.preflight.gpu_memory import (
    GIB,
    Memory,
    Model,
    estimate,
    fitting_tokens,
    largest,
    read_model,
    together,
)

if TYPE_CHECKING:
    from verl_ext.trainer.preflight.plan import Report

# What makes a part of training's memory smaller.
SHORTER = (
    "fewer tokens in a micro-batch (actor_rollout_ref.actor.ppo_max_token_len_per_gpu), which are at least those of "
    "the longest row (data.max_prompt_length, data.max_response_length, mas.agents.*.max_tokens)"
)
SMALLER = "a smaller model (actor_rollout_ref.model.path), more GPUs, or +base=lora"
REMEDIES = {"logits": SHORTER, "activations": SHORTER, "critic": "a smaller critic (critic.model.path), or more GPUs"}


class Sized(NamedTuple):
    """A policy whose model is known: its configuration, the model, and the memory that it needs of a GPU."""

    config: DictConfig
    model: Model
    memory: Memory


def add_model(report: Report, gpu_memory: float) -> dict[str, Sized]:
    """Add token limits, the size of the models, and the memory that they need of a GPU with `gpu_memory` GiB.

    A policy whose model is not known is named, and left out of the memory. Returns the others by name ("": the only
    policy of a run without `mas.policies`).
    """
    models, unknown, configs = dict[str, Model](), dict[str, str](), policy_configs(report.config)
    for name, own in configs.items():
        path, of = str(own.actor_rollout_ref.model.path), f" {name}" if name else ""
        try:
            model = models[name] = read_model(path)
        except LookupError as error:
            unknown[name] = str(error)
            continue
        report.add(f"model{of}", f"{path}: {model.parameters / 1e9:.3f} G parameters, by {model.source}")
        heads, tensor = model.config.num_attention_heads, own.actor_rollout_ref.rollout.tensor_model_parallel_size
        if heads % tensor:
            report.problems.append(
                f"rollout.tensor_model_parallel_size={tensor} does not divide {path}'s {heads} heads"
            )
    smallest = min(models.values(), key=lambda model: model.positions or sys.maxsize, default=None)
    _add_tokens(report, configs, models)
    for name, why in unknown.items():
        without = f" for {name}, and what follows is without it" if models else f" for {name}" * bool(name)
        report.add("memory", f"not estimated{without}: {why}")
    sized = _sized(report.config, configs, models)
    if smallest and report.config.trainer.device != "cpu":
        _add_memory(report, smallest, sized, gpu_memory)
    return sized


def _sized(config: DictConfig, configs: dict[str, DictConfig], models: dict[str, Model]) -> dict[str, Sized]:
    """The policies whose models are known; `configs` and `models` by policy."""
    frozen, found = {name for name, section in read_policies(config).items() if section.frozen}, dict[str, Sized]()
    for name, model in models.items():
        own, still = configs[name], name in frozen
        found[name] = Sized(own, model, estimate(own, model, checks.trains_critic(own) and not still, still))
    return found


def _add_memory(report: Report, model: Model, sized: dict[str, Sized], gpu_memory: float) -> None:
    config, found = report.config, _together(sized)
    parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in found.parts.items())
    tokens = max(found.kv_tokens(gpu_memory * GIB), 0)
    report.add("memory, training", f"about {found.training / GIB:.0f} GiB a GPU: {parts}")
    report.add("memory, new weights", f"about {found.sync / GIB:.0f} GiB while the engine gets them")
    cache = f"weights {found.weights / GIB:.1f} GiB, cache for {tokens:,} tokens"
    report.add("memory, sampling", f"{found.sampling}: {cache}")
    report.missing += too_little(sized, gpu_memory)
    length = config.actor_rollout_ref.rollout.max_model_len or model.positions
    if config.actor_rollout_ref.rollout.name == "vllm" and tokens < length:
        report.missing.append(
            f"memory: with {gpu_memory:g} GiB vLLM's cache holds about {tokens:,} tokens and vLLM would not "
            f"start for sequences of {length:,}. Remedy: actor_rollout_ref.rollout.max_model_len={_longest(config)}"
        )


def _together(sized: dict[str, Sized]) -> Memory:
    return together({name: one.memory for name, one in sized.items()})


def too_little(sized: dict[str, Sized], gpu_memory: float) -> list[str]:
    """A sentence if a run needs more than the `gpu_memory` GiB of a GPU, with the token limit that would fit.

    Of several policies, the limit is that of the one whose update needs most.
    """
    found = _together(sized)
    needed = found.needed() / GIB
    if needed <= gpu_memory:
        return []
    most = max(found.parts, key=lambda name: found.parts[name])
    remedy, name = REMEDIES.get(most, SMALLER), largest({name: one.memory for name, one in sized.items()})
    config = sized[name].config
    if remedy is SHORTER and found.training > gpu_memory * GIB and config.actor_rollout_ref.actor.use_dynamic_bsz:
        fits, longest = fitting_tokens(config, found, gpu_memory * GIB), _longest(config)
        remedy += f". {fits:,} tokens would fit{name and f' for {name}'}; the longest row has {longest:,}"
    return [
        f"memory: about {needed:.0f} GiB on each GPU, {gpu_memory:g} given (an estimate); most of training's is "
        f"for {most}. Remedy: {remedy}"
    ]


def memory_notes(config: DictConfig) -> list[str]:
    """The same at the start of a run, for this machine's GPU; nothing where there is none, or no model is here."""
    import torch

    if config.trainer.device == "cpu" or not torch.cuda.is_available():
        return []
    models, configs = dict[str, Model](), policy_configs(config)
    for name, own in configs.items():
        with suppress(LookupError):
            models[name] = read_model(str(own.actor_rollout_ref.model.path))
    if not models:
        return []
    return too_little(_sized(config, configs, models), round(torch.cuda.get_device_properties(0).total_memory / GIB, 1))


def _longest(config: DictConfig, agents: Collection[str] | None = None) -> int:
    """Tokens of the longest row that the limits allow: of these agents; None: of all."""
    given = read_mas_config(config).agents
    outputs = [one.max_tokens or 0 for name, one in given.items() if agents is None or name in agents]
    return int(config.data.max_prompt_length + max([config.data.max_response_length, *outputs]))


def _add_tokens(report: Report, configs: dict[str, DictConfig], models: dict[str, Model]) -> None:
    config, longest, sections = report.config, _longest(report.config), read_policies(report.config)
    prompt, dynamic = config.data.max_prompt_length, config.actor_rollout_ref.actor.use_dynamic_bsz
    micro, short = dict[str, str](), dict[int, list[str]]()
    for name, own in configs.items():
        section, actor = sections.get(name), own.actor_rollout_ref.actor
        most = _longest(own, section.agents if section else None)
        if section is None or not section.frozen:
            tokens, rows = actor.ppo_max_token_len_per_gpu, actor.ppo_micro_batch_size_per_gpu
            micro[name] = f"{tokens} tokens" if dynamic else f"{rows} rows"
        limits = _limits(own, name, section, models.get(name))
        short.setdefault(most, []).extend(f"{key}={limit}" for key, limit in limits.items() if limit < most)
    same = len(set(micro.values())) <= 1
    sizes = f"{prompt} of prompt, {longest - prompt} of output"
    parts = ", ".join(dict.fromkeys(text if same else f"{text} for {name}" for name, text in micro.items()))
    report.add("tokens", f"at most {longest} a row ({sizes})" + f"; micro-batches of {parts}" * bool(parts))
    report.problems += [
        f"{', '.join(dict.fromkeys(found))}: less than a row may have, {most} (data.max_prompt_length + the longest "
        "output); the run would stop at the first such row. Raise it, or lower those"
        for most, found in short.items()
        if found
    ]


def _limits(config: DictConfig, name: str, section: PolicySection | None, model: Model | None) -> dict[str, int]:
    """The limits of a row's tokens by the setting that gives them, of the policy of this configuration."""
    actor, trains = config.actor_rollout_ref.actor, section is None or not section.frozen
    dynamic = trains and actor.use_dynamic_bsz
    used = {
        "actor.ppo_max_token_len_per_gpu": dynamic,
        "ref.log_prob_max_token_len_per_gpu": dynamic,
        "rollout.log_prob_max_token_len_per_gpu": dynamic,
        "critic.ppo_max_token_len_per_gpu": trains and checks.trains_critic(config) and config.critic.use_dynamic_bsz,
    }
    ranks = actor.fsdp_config.ulysses_sequence_parallel_size
    limits = {
        given_at(name, section, key): OmegaConf.select(config, in_verl(key)) * ranks
        for key, counts in used.items()
        if counts
    }
    limits["actor_rollout_ref.rollout.max_model_len"] = config.actor_rollout_ref.rollout.max_model_len
    whose = f"{name}: the model's" if name else "the model's"
    limits[f"{whose} max_position_embeddings"] = model.positions if model else None
    return {key: limit for key, limit in limits.items() if limit is not None}
