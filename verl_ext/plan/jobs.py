"""From a configuration and the numbers of the command line to one job per sampling strategy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from statistics import fmean
from typing import Any

from omegaconf import DictConfig

from verl_ext.arguments import did_you_mean
from verl_ext.plan.formulas import Load, Terms
from verl_ext.plan.hardware import GIB, Device
from verl_ext.plan.scale import ASSUMED, FITTED_CPU, Job
from verl_ext.plan.workload import expected_load, read_point, sizes_of
from verl_ext.sampling import STRATEGIES
from verl_ext.trainer.build import build_workflow
from verl_ext.trainer.config import MasConfig, read_mas_config, strategy_from
from verl_ext.trainer.preflight.checks import trains_critic
from verl_ext.trainer.preflight.fitting import Sized
from verl_ext.trainer.preflight.gpu_memory import Memory, Model, estimate, read_model


def jobs_of(
    given: Any, config: DictConfig, device: Device, known: Mapping[str, Sized] | None = None
) -> tuple[dict[str, Job], list[str]]:
    """(strategy -> job, lines that say what is planned).

    Args:
        given: of the command line, see `options`; at_limits: calls are as long as they may be where it has no tokens.
        known: the model and its memory on the configured number of devices, for a job on these alone.

    Raises:
        ValueError: the model's size or the tokens of a call are not known, or a coefficient is not a number above 0.
    """
    mas, path = read_mas_config(config), str(config.actor_rollout_ref.model.path)
    one, agents = (known or {}).get(""), build_workflow(mas).trained_agents
    model = one.model if one else model_of(path)
    tokens, where = tokens_of(given, mas, config, agents, device)
    base = job_of(given, config, device, model, tokens, memory_on(config, model, one))
    jobs, questions = dict[str, Job](), config.data.train_batch_size
    tools = {"tool_turns": float(given.tool_turns), "tool_seconds": given.tool_seconds}
    for name in dict.fromkeys([*STRATEGIES, mas.sampling.strategy]):
        strategy = strategy_from(mas.sampling.model_copy(update={"strategy": name}), agents)
        jobs[name] = replace(base, load=expected_load(name, strategy, questions, *tokens, **tools))
    facts = [
        f"{path}: {model.parameters / 1e6:,.0f} M parameters, by {model.source}",
        f"{questions} questions a step, {len(agents)} agents, G = {mas.sampling.group_size}",
        where,
        *machine_facts(config, device),
    ]
    return jobs, facts


def model_of(path: str, setting: str = "actor_rollout_ref.model.path") -> Model:
    """`read_model`; `setting` is where the path is given.

    Raises:
        ValueError: the size of the model is not known.
    """
    try:
        return read_model(path)
    except LookupError as error:
        raise ValueError(
            f"the size of the model is not known: {error}. Remedy: {setting}=FOLDER with a config.json (no weights are "
            "read), or one of the models in that table"
        ) from error


def machine_facts(config: DictConfig, device: Device) -> list[str]:
    """What the device can do, and what of the run is not in the model."""
    critic = ["The critic's memory counts; its time is not in the model."] if trains_critic(config) else []
    return [f"{device.name}: {_peaks(device)}", *critic]


def _peaks(device: Device) -> str:
    if device.node == 1:
        return device.source
    speed = f"{device.flops / 1e12:,.0f} TFLOP/s, {device.bandwidth / 1e12:.2f} TB/s, {device.memory / GIB:.0f} GiB"
    links = f"{device.link / 1e9:.0f} GB/s to a neighbour, {device.network / 1e9:.1f} GB/s to other machines"
    return f"{speed}, {links} ({device.source})"


def job_of(
    given: Any,
    config: DictConfig,
    device: Device,
    model: Model,
    tokens: tuple[float, float, float],
    memory: Callable[[int], Memory],
) -> Job:
    """What is the same for all strategies; its load is a placeholder."""
    actor, rollout, settings = (config.actor_rollout_ref[name] for name in ("actor", "rollout", "model"))
    reference = actor.use_kl_loss or config.algorithm.use_kl_in_reward
    old = not config.algorithm.rollout_correction.bypass_mode
    rows = (actor.ppo_micro_batch_size_per_gpu or 1) * (tokens[0] + tokens[1])
    return Job(
        load=Load(1, 1, 1, 1, 1, *tokens),
        sizes=sizes_of(model, str(rollout.dtype)),
        device=device,
        coefficients=coefficients(given.coefficient, FITTED_CPU if given.device == "cpu" else ASSUMED),
        memory=memory,
        phases=(*["old_log_prob"] * old, *["ref"] * bool(reference), "update_actor"),
        max_seqs=rollout.max_num_seqs,
        workers=max(rollout.agent.num_workers, 1),
        tensor=rollout.tensor_model_parallel_size,
        micro_tokens=int(actor.ppo_max_token_len_per_gpu if actor.use_dynamic_bsz else rows),
        shared=rollout.name == "hf",
        passes=3.0 + bool(settings.enable_gradient_checkpointing) - (settings.lora_rank > 0),
    )


def coefficients(given: list[str], known: Terms) -> Terms:
    """Known ones, with the values of the command line.

    Raises:
        ValueError: an unknown name, or a value that is no number of at least 0.
    """
    found = dict(known)
    for text in given:
        name, _, value = text.partition("=")
        if name not in found:
            raise ValueError(f"--coefficient {text}: unknown{did_you_mean(name, found)} (allowed: {', '.join(found)})")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = math.nan
        if not 0 <= found[name] < math.inf:
            raise ValueError(f"--coefficient {text}: give a number of at least 0, e.g. {name}={known[name]:g}")
    return found


def memory_on(
    config: DictConfig, model: Model, known: Sized | None = None, frozen: bool = False
) -> Callable[[int], Memory]:
    """devices -> the memory that a run with so many ranks needs of each; a critic's included.

    known: has it for the configured number, which is the only one then. frozen: none trains.
    """
    if known:
        return lambda devices: known.memory
    changed, critic = config.copy(), trains_critic(config) and not frozen

    @cache
    def memory(devices: int) -> Memory:
        changed.trainer.nnodes, changed.trainer.n_gpus_per_node = 1, devices  # only their product counts
        return estimate(changed, model, critic, frozen)

    return memory


def limits_of(mas: MasConfig, config: DictConfig, agents: list[str]) -> dict[str, int]:
    """The most tokens that each of these agents may write in a call."""
    own = {name: mas.agents[name].max_tokens for name in agents if name in mas.agents}
    return {name: own.get(name) or config.data.max_response_length for name in agents}


def tokens_of(
    given: Any, mas: MasConfig, config: DictConfig, agents: list[str], device: Device
) -> tuple[tuple[float, float, float], str]:
    """((prompt, output, longest chain), where they come from)."""
    limits = float(sum(each := list(limits_of(mas, config, agents).values())))
    if given.run is not None:
        load: Load = read_point(given.run, device).load
        load = replace(load, longest=given.longest or load.longest)
        source = f"measured in {given.run}"
    elif given.prompt_tokens and given.output_tokens:
        load = Load(1, 1, 1, 1, 1, given.prompt_tokens, given.output_tokens, given.longest or limits)
        source = "given" if given.longest else "given, the longest chain is all agents at max_tokens"
    elif given.at_limits:
        load = Load(1, 1, 1, 1, 1, config.data.max_prompt_length, fmean(each), given.longest or limits)
        source = "their limits; less by --prompt_tokens and --output_tokens, or --run FOLDER"
    else:
        raise ValueError(
            "the tokens of a call are not known. Remedy: --prompt_tokens 1500 --output_tokens 60 (means of all calls), "
            "or --run FOLDER of a run of the same system"
        )
    if not (load.prompt > 0 and load.output > 0 and load.longest > 0):
        raise ValueError("--prompt_tokens, --output_tokens and --longest must be above 0")
    text = f"a call reads {load.prompt:,.0f} tokens and writes {load.output:,.0f}"
    return (load.prompt, load.output, load.longest), f"{text}, the longest chain writes {load.longest:,.0f} ({source})"
