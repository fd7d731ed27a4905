"""LoRA adapters per agent: their settings, and the names of their tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils.py_functional import convert_to_regular_types
from verl.utils.torch_dtypes import PrecisionType

from verl_ext.engine.precision import AUTO

# Field of a row: which of `lora.adapters` its agent has, as a number from 0.
AGENT_ID = "agent_id"
# Key of a request's sampling parameters: the name of the adapter that is to answer it, or BASE: none of them.
ADAPTER = "adapter"
BASE = ""

SECTION = "actor_rollout_ref.model"
# Where training on CUDA looks for an engine of ours, and vLLM for several adapters: VERL_ENGINE_VENDOR in the workers'
# environment.
VENDOR = "verl_ext"
NO_ADAPTERS = (
    f"the trainer's engine does not have the adapters of {SECTION}.lora.adapters: verl's own trains one for all. On "
    f"CUDA set VERL_ENGINE_VENDOR={VENDOR} (ray_kwargs.ray_init.runtime_env.env_vars)"
)
# Names become parts of parameter names, file names and requests.
NAME = re.compile(r"[A-Za-z0-9_-]+")
PARAMETER = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])\.(?P<adapter>[^.]+)\.weight")


def numbers_of(data: TensorDict) -> torch.Tensor | None:
    """(B,) int64 on the CPU, `agent_id` of the rows; None: they have none."""
    if AGENT_ID not in data.keys():
        return None
    column = data[AGENT_ID]
    if not isinstance(column, torch.Tensor):  # TransferQueue keeps plain numbers as objects
        column = torch.tensor([int(getattr(value, "data", value)) for value in column])
    return column.reshape(-1).to("cpu", torch.int64)


@dataclass(frozen=True)
class AdapterOptions:
    """The adapters of a model: all of one rank and on the same linear layers, without dropout.

    names     `lora.adapters`; a row's `agent_id` is a place in it
    targets   peft's target_modules: "all-linear", names of layers, or a pattern
    excluded  peft's exclude_modules
    start     name -> peft folder that it starts from; the others start fresh
    """

    names: tuple[str, ...]
    rank: int
    alpha: int
    targets: str | list[str] = "all-linear"
    excluded: str | list[str] | None = None
    start: Mapping[str, str] = field(default_factory=dict)

    @property
    def scaling(self) -> float:
        """Factor of every adapter's output."""
        return self.alpha / self.rank

    @classmethod
    def from_config(cls, model: Any) -> AdapterOptions | None:
        """Read `actor_rollout_ref.model` (verl's HFModelConfig, or the section itself, which lacks some of its fields).

        None where `lora.adapters` is absent or empty.

        Raises:
            ValueError: invalid names, no rank, or a setting that cannot be combined with adapters per agent.
        """
        lora = model.lora or {}
        if not lora.get("adapters"):
            return None
        names = tuple(str(name) for name in lora["adapters"])
        if len(set(names)) < len(names) or not all(NAME.fullmatch(name) for name in names):
            raise ValueError(
                f"{SECTION}.lora.adapters={list(names)} must be different names of letters, digits, _ and -"
            )
        if model.lora_rank < 1:
            raise ValueError(f"{SECTION}.lora.adapters needs {SECTION}.lora_rank of at least 1, got {model.lora_rank}")
        refused = {"lora.merge": lora.get("merge") or False, "lora.dropout": lora.get("dropout") or 0}
        refused |= {key: getattr(model, key, None) for key in ("lora_adapter_path", "target_parameters")}
        refused["enable_activation_offload"] = model.enable_activation_offload
        for key, given in refused.items():
            if given:
                neutral = {"lora.dropout": 0, "lora_adapter_path": "null", "target_parameters": "null"}.get(
                    key, "false"
                )
                raise ValueError(
                    f"{SECTION}.lora.adapters does not go with {SECTION}.{key}={given}. Remedy: {key}={neutral}"
                )
        targets, excluded = (convert_to_regular_types(value) for value in (model.target_modules, model.exclude_modules))
        start = {str(name): str(place) for name, place in (lora.get("start") or {}).items()}
        if unknown := sorted(set(start) - set(names)):
            raise ValueError(
                f"mas.policy_init names {', '.join(unknown)}, which have no adapter; allowed: {', '.join(names)}"
            )
        return cls(names, int(model.lora_rank), int(model.lora_alpha), targets, excluded, start)


def check_settings(
    prefix: str, strategy: str, sequence_parallel: int, precision: str, quantised: bool, save_contents: Iterable[str]
) -> None:
    """Refuse settings of the training engine that cannot be combined with adapters per agent.

    Args:
        prefix: of the settings' names in messages.
        strategy: `strategy`. sequence_parallel: `ulysses_sequence_parallel_size`.
        precision: `mixed_precision.param_dtype`; auto is never fp16. quantised: `qat.enable`.
        save_contents: `checkpoint.save_contents`.

    Raises:
        ValueError: what does not fit, and the remedy.
    """
    half = (
        precision != AUTO and PrecisionType.to_dtype(precision) == torch.float16
    )  # whose gradients are scaled as a whole
    for key, given, fits, remedy in (
        ("strategy", strategy, strategy == "fsdp2", "fsdp2"),
        ("ulysses_sequence_parallel_size", sequence_parallel, sequence_parallel == 1, "1"),
        ("mixed_precision.param_dtype", precision, not half, "bf16"),
        ("qat.enable", True, not quantised, "false"),
    ):
        if not fits:
            raise ValueError(f"adapters per agent do not go with {prefix}{key}={given}. Remedy: {prefix}{key}={remedy}")
    if "hf_model" in save_contents:
        raise ValueError(
            "with adapters per agent there is no whole model to save. Remedy: take hf_model out of "
            "checkpoint.save_contents; every checkpoint holds a peft folder per adapter (actor/adapters/<name>)"
        )


def wire_name(parameter: str) -> str | None:
    """The name of an adapter's tensor between processes and in files: `<adapter>/<layer>.lora_A.weight`.

    None for any other parameter of peft's model.
    """
    match = PARAMETER.fullmatch(parameter)
    return match and f"{match['adapter']}/{match['module']}.lora_{match['side']}.weight"
