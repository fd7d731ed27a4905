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
        state = {f"base_model.model.{key.removeprefix(f'{name}/')}": t.contiguous() for key, t in own.items()}
        save_file(state, place / "adapter_model.safetensors", metadata={"format": "pt"})
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
        config = json.loads((checkpoint / FOLDER / record["names"][0] / "adapter_config.json").read_text())
        return {key: record[key] for key in ("names", "rank", "alpha")}, config["base_model_name_or_path"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"the adapters of {checkpoint} cannot be read: {type(error).__name__}: {error}") from error


def read_adapters(checkpoint: Path, options: AdapterOptions) -> dict[str, torch.Tensor]:
    """The tensors that `write_adapters` wrote, by wire name, as a server with these adapters takes them.

    Raises:
        ValueError: the checkpoint is of other adapters.
    """
    check_same_adapters(checkpoint, options)
    files = {name: load_file(checkpoint / FOLDER / name / "adapter_model.safetensors") for name in options.names}
    return {
        f"{name}/{key.removeprefix('base_model.model.')}": tensor
        for name, state in files.items()
        for key, tensor in state.items()
    }


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
