"""LoRA adapters per agent: how the configuration declares them, and what their tensors are called."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from verl.utils.py_functional import convert_to_regular_types

# Field of a row: which of `lora.adapters` its agent has, as a number from 0.
AGENT_ID = "agent_id"
# Key of a request's sampling parameters: the name of the adapter that is to answer it.
ADAPTER = "adapter"

SECTION = "actor_rollout_ref.model"
# Names become parts of parameter names, file names and requests.
NAME = re.compile(r"[A-Za-z0-9_-]+")
PARAMETER = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])\.(?P<adapter>[^.]+)\.weight")


@dataclass(frozen=True)
class AdapterOptions:
    """The adapters of a model: all of one rank and on the same linear layers, without dropout.

    names     `lora.adapters`; a row's `agent_id` is a place in it
    targets   peft's target_modules: "all-linear", names of layers, or a pattern
    excluded  peft's exclude_modules
    """

    names: tuple[str, ...]
    rank: int
    alpha: int
    targets: str | list[str] = "all-linear"
    excluded: str | list[str] | None = None

    @property
    def scaling(self) -> float:
        """Factor of every adapter's output."""
        return self.alpha / self.rank

    @classmethod
    def from_config(cls, model: Any) -> AdapterOptions | None:
        """Read `actor_rollout_ref.model` (verl's HFModelConfig, or the section itself, which lacks some of its fields).

        None where `lora.adapters` is absent or empty.

        Raises:
            ValueError: names that are none, no rank, or a setting that adapters per agent do not go with.
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
        return cls(names, int(model.lora_rank), int(model.lora_alpha), targets, excluded)


def wire_name(parameter: str) -> str | None:
    """What an adapter's tensor is called between processes and in files: `<adapter>/<layer>.lora_A.weight`.

    None for any other parameter of peft's model.
    """
    match = PARAMETER.fullmatch(parameter)
    return match and f"{match['adapter']}/{match['module']}.lora_{match['side']}.weight"
