"""verl's own settings before the start: which keys there are, of what type their values, and which names.

Hydra accepts null and texts for verl's numbers, and verl looks some names up only while it runs.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from typing import Any

import hydra
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from verl_ext.engine.fsdp.packed_attention import NAME as PACKED
from verl_ext.settings import unknown_key, unknown_name
from verl_ext.trainer.modes import CORRECTION, OBJECT_STORE, OBJECT_STORE_MODULE
from verl_ext.trainer.policies.settings import PLACES

# Sections in which every key is allowed: verl passes them on unchanged.
OPEN = ("hydra", "mas", "ray_kwargs.ray_init", "reward.custom_reward_function.reward_kwargs")
# TransferQueue's own, which verl passes on.
QUEUE_NODES = "transfer_queue.backend.SimpleStorage.required_node_resource"
# Our own keys in verl's sections.
OWN = ("actor_rollout_ref.model.lora.adapters", "actor_rollout_ref.model.lora.start", "trainer.keep_best", QUEUE_NODES)
# Numbers of verl's that must not be null, with the least where no other check has it: whole ones, and others.
WHOLE = {
    "data.train_batch_size": None,
    "data.train_max_samples": None,
    "data.val_max_samples": None,
    "data.max_prompt_length": 1,
    "data.max_response_length": 1,
    "actor_rollout_ref.actor.ppo_mini_batch_size": None,
    "actor_rollout_ref.actor.ppo_epochs": 1,
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 1,
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size": 1,
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": 1,
    "actor_rollout_ref.model.lora_rank": 0,
    "actor_rollout_ref.model.lora_alpha": 1,
    "actor_rollout_ref.rollout.nnodes": 0,
    "actor_rollout_ref.rollout.n_gpus_per_node": 0,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    "actor_rollout_ref.rollout.data_parallel_size": 1,
    "actor_rollout_ref.rollout.pipeline_model_parallel_size": 1,
    "actor_rollout_ref.rollout.max_num_seqs": 1,
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": 1,
    "actor_rollout_ref.rollout.val_kwargs.n": 1,
    "actor_rollout_ref.rollout.agent.num_workers": 0,
    "critic.ppo_epochs": 1,
    "critic.ppo_max_token_len_per_gpu": 1,
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 1,
    "trainer.total_epochs": None,
    "trainer.test_freq": None,
    "trainer.save_freq": None,
    "trainer.v1.separate_async.parameter_sync_step": None,
}
REAL = {
    "actor_rollout_ref.rollout.temperature": None,
    "actor_rollout_ref.rollout.val_kwargs.temperature": 0,
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0,
    "actor_rollout_ref.actor.optim.lr": None,
    "actor_rollout_ref.actor.clip_ratio": 0,
    "actor_rollout_ref.actor.clip_ratio_low": 0,
    "actor_rollout_ref.actor.clip_ratio_high": 0,
    "critic.optim.lr": None,
    "critic.cliprange_value": 0,
    "trainer.v1.separate_async.num_warmup_batches": 0,
}
# Whole numbers or null, which verl's configuration does not tell, with the least.
OR_NULL = {
    "data.seed": None,
    "data.gen_batch_size": 1,
    "data.val_batch_size": 1,
    "ray_kwargs.ray_init.num_cpus": 1,
    "trainer.total_training_steps": 0,
    "trainer.max_actor_ckpt_to_keep": 0,
    "trainer.max_critic_ckpt_to_keep": 0,
}
LEAST = WHOLE | REAL | OR_NULL
# Shares above 0.
SHARES = tuple(f"actor_rollout_ref.rollout.{key}" for key in ("top_p", "val_kwargs.top_p"))
# A number in verl's configuration, which may be a text: "0.5_2.0".
RANGES = ("algorithm.rollout_correction.rollout_is_threshold",)
# verl has no other tuples than the betas of an optimiser.
WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list of two numbers, each at least 0 and below 1",
}
STRATEGIES = ["fsdp", "fsdp2", "fsdp_turbo", "megatron", "veomni", "torchtitan", "automodel"]
ATTENTION = "actor_rollout_ref.model.override_config.attn_implementation"
# Names that verl would refuse only while it runs; null is "null".
NAMES = {
    "actor_rollout_ref.actor.kl_loss_type": [
        one + straight for one in ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3") for straight in ("", "+")
    ],
    "actor_rollout_ref.actor.strategy": STRATEGIES,
    "critic.strategy": STRATEGIES,
    "actor_rollout_ref.rollout.name": ["hf", "vllm", "sglang", "trtllm"],
    "actor_rollout_ref.rollout.dtype": [
        "auto",
        "bfloat16",
        "float16",
        "float32",
        "half",
        "float",
        "bf16",
        "fp16",
        "fp32",
    ],
    f"{CORRECTION}.rollout_is": ["null", "token", "sequence"],
    "algorithm.kl_ctrl.type": ["fixed", "adaptive"],
    "trainer.resume_mode": ["auto", "disable", "resume_path"],
    "trainer.v1.sampler.max_off_policy_strategy": ["drop", "wait"],
}
BACKEND, MODULE = (f"actor_rollout_ref.rollout.checkpoint_engine.{key}" for key in ("backend", "custom_backend_module"))
VERLS_BACKENDS = ["naive", "nccl", "nixl", "kimi_ckpt_engine", "mooncake", "delta_sharded"]


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
            added = f"; to add it on purpose: +{place}=… on the command line"
            problems.append(unknown_key(key, map(str, known), path.rstrip("."), added))
        elif isinstance(value, dict) and isinstance(stock.get(key), dict) and stock[key]:
            problems += _unknown(value, stock[key], f"{place}.", allowed)
    return problems


def check_numbers(config: DictConfig) -> None:
    """Check that verl's numbers are numbers, and what is true or false is that: Hydra accepts null and texts, too.

    Raises:
        ValueError: a line for each that is none, or too small; for each section that is none.
    """
    sections = dict.fromkeys(one for name in (*LEAST, *RANGES) for one in _above(name))
    given = {place: OmegaConf.select(config, place, default=OmegaConf.create()) for place in sections}
    if nones := [place for place, one in given.items() if not isinstance(one, DictConfig)]:
        raise ValueError(f"{nones[0]}={given[nones[0]]!r} must be a section with keys. Remedy: leave it out")
    problems, absent = dict[str, str](), dict.fromkeys(WORDS, 1) | {tuple: None}  # what is right in place of it
    for name, kind in _kinds().items():
        for place in (name, *_of_policies(config, name)):
            if problem := _problem(OmegaConf.select(config, place, default=absent[kind]), name, kind, place):
                problems[place] = problem
    given_there = [text for place, text in problems.items() if not _follows(config, place)]
    if problems:
        raise ValueError("\n".join(given_there or problems.values()))


def _follows(config: DictConfig, place: str) -> bool:
    """Whether a setting takes its value from another one."""
    section, _, key = place.rpartition(".")
    return OmegaConf.is_interpolation(OmegaConf.select(config, section), key)


def _above(name: str) -> list[str]:
    """The sections that a setting is in, the outermost first."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _problem(given: Any, name: str, kind: type, place: str) -> str:
    """What is wrong with the value of a setting; "": nothing."""
    if given is None and name not in WHOLE and name not in REAL:
        return ""
    number = isinstance(given, int | float)
    fits = {bool: not isinstance(given, str), int: isinstance(given, int), float: number, tuple: _are_betas(given)}
    if not fits[kind] or given != given or (isinstance(given, bool) and kind is not bool):
        return f"{place}={given!r} must be {WORDS[kind]}"
    if number and math.isinf(given):
        return f"{place}={given} must be finite"
    if (least := LEAST.get(name)) is not None and given < least:
        return f"{place}={given} must be at least {least}"
    return f"{place}={given} must be above 0 and at most 1" if name in SHARES and not 0 < given <= 1 else ""


def _are_betas(given: Any) -> bool:
    if not OmegaConf.is_list(given) or len(given) != 2:
        return False
    return all(isinstance(one, int | float) and 0 <= one < 1 for one in given)


def _kinds() -> dict[str, type]:
    """bool, int, float (any number) or tuple of the settings that are checked, by name."""
    return _stock_kinds() | dict.fromkeys(WHOLE | OR_NULL, int) | dict.fromkeys(REAL, float)


@functools.cache
def _stock_kinds() -> dict[str, type]:
    """The same of all of verl's own that have a type, or a default that is a number or true or false."""
    found: dict[str, type] = {}

    def add(section: dict[str, Any], path: str) -> None:
        target = section.get("_target_")
        cls = get_class(target) if isinstance(target, str) else None
        hints = typing.get_type_hints(cls) if dataclasses.is_dataclass(cls) else {}
        for key, default in section.items():
            if isinstance(default, dict):
                add(default, f"{path}{key}.")
                continue
            hint = hints.get(key, type(default) if isinstance(default, bool | int | float) else None)
            union = typing.get_origin(hint) in (typing.Union, types.UnionType)
            kinds = {*(typing.get_args(hint) if union else [typing.get_origin(hint) or hint])} - {type(None)}
            if len(kinds) == 1 and (kind := kinds.pop()) in WORDS:
                found[f"{path}{key}"] = float if kind is int and key not in hints else kind

    add(_stock(), "")
    return {name: kind for name, kind in found.items() if name not in RANGES}


def _of_policies(config: DictConfig, name: str) -> list[str]:
    """Where policies may set what verl has under this name."""
    keys = [
        f"{part}.{name.removeprefix(f'{place}.')}" for part, place in PLACES.items() if name.startswith(f"{place}.")
    ]
    given = OmegaConf.select(config, "mas.policies")
    policies = [str(one) for one in given] if isinstance(given, DictConfig) else []
    return [f"mas.policies.{one}.{key}" for key in keys for one in policies]


def check_names(config: DictConfig) -> None:
    """Check names that verl looks up while it runs. Plug-ins must have been imported: they may bring a loss, or a kind
    of attention; a name of attention with a slash is a kernel of the hub.

    Raises:
        ValueError: a line for each that is unknown, with those that are allowed.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
    from verl.utils.tracking import Tracking

    names = NAMES | {"actor_rollout_ref.actor.policy_loss.loss_mode": [*POLICY_LOSS_REGISTRY]}
    names[ATTENTION] = [
        "null",
        "eager",
        PACKED,
        *(one for one in ALL_ATTENTION_FUNCTIONS.valid_keys() if one != PACKED),
    ]
    module = OmegaConf.select(config, MODULE)
    if module in (None, OBJECT_STORE_MODULE):
        names[BACKEND] = [*VERLS_BACKENDS, *([OBJECT_STORE] if module else [])]
    given = [
        (place, OmegaConf.select(config, place, default=allowed[0]), allowed)
        for name, allowed in names.items()
        for place in (name, *_of_policies(config, name))
    ]
    given += [("trainer.logger", one, ["tracking", *Tracking.supported_backend]) for one in _loggers(config)]
    given = [(place, "null" if one is None else one, allowed) for place, one, allowed in given]
    problems = [
        unknown_name(place, one, allowed) for place, one, allowed in given if one not in allowed and "/" not in str(one)
    ]
    weighed, most = (OmegaConf.select(config, f"{CORRECTION}.{key}") for key in ("rollout_is", "rollout_is_threshold"))
    if weighed and (most is None or (not isinstance(most, str) and not most > 0)):
        problems.append(
            f"{CORRECTION}.rollout_is_threshold={most} must be above 0: it bounds the weights of rollout_is={weighed}"
        )
    if problems:
        raise ValueError("\n".join(problems))


def _loggers(config: DictConfig) -> list[Any]:
    given = config.trainer.logger
    return list(given) if OmegaConf.is_list(given) else [given]
