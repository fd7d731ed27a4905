"""Adapters on disk: a peft folder per adapter, and a record of all adapters of a checkpoint.

<checkpoint>/adapters.json                              names in order, rank, alpha
<checkpoint>/adapters/<name>/adapter_config.json        as peft reads them:
<checkpoint>/adapters/<name>/adapter_model.safetensors  PeftModel.from_pretrained(base, <checkpoint>/adapters/<name>)
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

from verl_ext.engine.lora.adapters import SECTION, AdapterOptions

if TYPE_CHECKING:
    from peft import LoraConfig

RECORD = "adapters.json"
FOLDER = "adapters"
CONFIG, TENSORS, PREFIX = "adapter_config.json", "adapter_model.safetensors", "base_model.model."


def write_adapters(
    checkpoint: Path, options: AdapterOptions, tensors: Mapping[str, torch.Tensor], configs: Mapping[str, LoraConfig]
) -> None:
    """Write all adapters of a checkpoint.

    Args:
        checkpoint: its folder; made if need be.
        tensors: whole ones, by wire name (see adapters.py), on the CPU.
        configs: of peft, by adapter.
    """
    for name in options.names:
        place = checkpoint / FOLDER / name
        place.mkdir(parents=True, exist_ok=True)
        own = {key: tensor for key, tensor in tensors.items() if key.startswith(f"{name}/")}
        assert own, f"no tensors of adapter {name}"
        state = {f"{PREFIX}{key.removeprefix(f'{name}/')}": t.contiguous() for key, t in own.items()}
        save_file(state, place / TENSORS, metadata={"format": "pt"})
        config = copy.copy(configs[name])
        config.inference_mode = True
        config.save_pretrained(str(place))
    (checkpoint / RECORD).write_text(json.dumps(_record(options), indent=1))


def read_record(checkpoint: Path) -> tuple[dict[str, Any], str] | None:
    """The record of a checkpoint: names, rank and alpha of its adapters, and their base; None: it has no adapters.

    Raises:
        ValueError: the record is damaged.
    """
    if not (checkpoint / RECORD).is_file():
        return None
    try:
        record = json.loads((checkpoint / RECORD).read_text())
        config = json.loads((checkpoint / FOLDER / record["names"][0] / CONFIG).read_text())
        return {key: record[key] for key in ("names", "rank", "alpha")}, config["base_model_name_or_path"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"the adapters of {checkpoint} cannot be read: {type(error).__name__}: {error}") from error


def read_adapters(checkpoint: Path, options: AdapterOptions) -> dict[str, torch.Tensor]:
    """The tensors that `write_adapters` wrote, by wire name, as a server with these adapters takes them.

    Raises:
        ValueError: the checkpoint is of other adapters.
    """
    check_same_adapters(checkpoint, options)
    files = {name: load_file(checkpoint / FOLDER / name / TENSORS) for name in options.names}
    return {
        f"{name}/{key.removeprefix(PREFIX)}": tensor for name, state in files.items() for key, tensor in state.items()
    }


def check_start(options: AdapterOptions) -> None:
    """Refuse folders that adapters cannot start from (`mas.policy_init`).

    Raises:
        ValueError: no peft folder, or one of another rank or alpha; names the remedy.
    """
    for name, place in options.start.items():
        try:
            config = json.loads((Path(place) / CONFIG).read_text())
        except (OSError, ValueError) as error:
            raise ValueError(
                f"mas.policy_init.{name}={place} is no peft folder: {error}. Remedy: the folder adapters/{name} of a "
                "checkpoint of verl_ext.sft with model.lora.adapters, or of a run with mas.policy=per_agent_lora"
            ) from None
        if scaled := [key for key in ("use_rslora", "alpha_pattern") if config.get(key)]:
            raise ValueError(
                f"mas.policy_init.{name}={place} has {scaled[0]}={config[scaled[0]]}: the run would multiply its "
                "adapter by another factor than it was trained with, lora_alpha / r in all layers. Remedy: an adapter "
                "without it"
            )
        there, here = (config.get("r"), config.get("lora_alpha")), (options.rank, options.alpha)
        if there != here:
            raise ValueError(
                f"mas.policy_init.{name}={place} has rank and alpha {there}, the run {here}. Remedy: "
                f"{SECTION}.lora_rank={there[0]} {SECTION}.lora_alpha={there[1]}, the same for all agents"
            )


def load_start(parameters: Mapping[str, torch.Tensor], options: AdapterOptions) -> None:
    """Set the adapters that start from a peft folder.

    Args:
        parameters: of all adapters, by wire name, not sharded; those on the meta device stay as they are.

    Raises:
        ValueError: a folder's tensors are not those of the adapter.
    """
    check_start(options)
    for name, place in options.start.items():
        own = {key.removeprefix(f"{name}/"): p for key, p in parameters.items() if key.startswith(f"{name}/")}
        given = {k.removeprefix(PREFIX): t for k, t in load_file(Path(place) / TENSORS).items()}
        odd = sorted(set(own) ^ set(given)) or [key for key in own if own[key].shape != given[key].shape]
        if odd:
            raise ValueError(
                f"mas.policy_init.{name}={place} does not fit the adapters of this run: {len(odd)} tensors are "
                f"missing, superfluous or of another shape, e.g. {odd[0]}. "
                f"Remedy: the same base and {SECTION}.target_modules"
            )
        with torch.no_grad():
            for key, parameter in own.items():
                if not parameter.is_meta:
                    parameter.copy_(given[key])


def check_same_adapters(checkpoint: Path, options: AdapterOptions) -> None:
    """Refuse to go on from other adapters: the optimiser's state is stored by position, and would change owners.

    Raises:
        ValueError: the checkpoint has no adapters, or others, or another order, rank or alpha; names the difference.
    """
    file = checkpoint / RECORD
    if not file.is_file():
        raise ValueError(f"{checkpoint} is no checkpoint of adapters per agent ({SECTION}.lora.adapters): no {RECORD}")
    before, now = json.loads(file.read_text()), _record(options)
    if before != now:
        raise ValueError(
            f"{checkpoint} holds adapters {before}, the configuration asks for {now}. Remedy: the former's agents and "
            "LoRA settings, or a run of its own (trainer.resume_mode=disable, another trainer.default_local_dir)"
        )


def _record(options: AdapterOptions) -> dict[str, Any]:
    return {"names": list(options.names), "rank": options.rank, "alpha": options.alpha}
