"""What `evaluate.model` names: a Hugging Face folder, a hub name, or a checkpoint of a training run."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_ext.engine.lora.adapter_files import FOLDER, read_record
from verl_ext.trainer.state.checkpoint import complete_steps

WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "model_world_size_*_rank_*.pt")


@dataclass(frozen=True)
class Model:
    """A model to be loaded.

    Attributes:
        path: folder of its configuration and tokenizer (and weights, unless `shards`), or a hub name.
        shards: folder of the FSDP shards that hold its weights; None: they are in `path`.
        adapters: folder of a checkpoint of adapters per agent, for which `path` is the base; None: there are none.
        lora: of the adapters: names, rank, alpha.
        fingerprint: of the files of its weights (names, sizes, times); empty for a hub name.
    """

    path: str
    shards: Path | None = None
    fingerprint: str = ""
    adapters: Path | None = None
    lora: dict[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """Where its weights are; of a checkpoint of adapters, where the adapters are."""
        return str(self.adapters or self.shards or self.path)

    @property
    def step(self) -> int | None:
        """Training step of a checkpoint of a run; None: it is none."""
        found = re.search(r"global_step_(\d+)", self.source)
        return int(found[1]) if found else None


def find_model(name: str, base: str = "") -> Model:
    """What a path or hub name stands for.

    Args:
        base: a folder with the base of adapters per agent, where the one that they were trained on is not here.

    Raises:
        ValueError: a folder without weights, an unfinished or unsupported checkpoint, or a path that does not exist.
    """
    folder = Path(name).expanduser()
    if not folder.exists():
        of_a_folder = "/" in name and folder.parent.is_dir()  # runs/typo, which the hub would take for a name, too
        if of_a_folder or folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
            raise ValueError(f"evaluate.model={name} does not exist{_suggestion(folder.parent)}")
        return Model(name)
    actor = folder / "actor" if (folder / "actor").is_dir() else folder
    if (adapted := read_record(actor)) is not None:
        lora, own = adapted
        elsewhere = bool(base) and Path(base).expanduser().is_dir() and not Path(own).expanduser().is_dir()
        below = find_model(base if elsewhere else own)
        return Model(below.path, None, _fingerprint(actor / FOLDER) + below.fingerprint, actor, lora)
    ready = next((place for place in (folder, actor / "huggingface") if _weights(place, WEIGHTS[:2])), None)
    if ready is not None and (ready / "config.json").exists():
        return Model(str(ready), fingerprint=_fingerprint(ready))
    if (actor / "fsdp_config.json").exists() and _weights(actor, WEIGHTS[2:]):
        return Model(str(actor / "huggingface"), actor, _fingerprint(actor))
    if (actor / "model").is_dir():
        raise ValueError(
            f"{folder} is no FSDP checkpoint. Remedy: python -m verl.model_merger merge --backend megatron --local_dir "
            f"{actor} --target_dir MERGED, then evaluate.model=MERGED"
        )
    raise ValueError(
        f"evaluate.model={name} holds neither a Hugging Face model (config.json and weights) nor a checkpoint of a run "
        f"(actor/fsdp_config.json and shards){_suggestion(folder)}"
    )


def full_weights(model: Model) -> dict[str, Any]:
    """Whole tensors by Hugging Face name, from the shards of a checkpoint, in the precision in which they were saved.

    verl's merger does the work; only its conversion to bfloat16 is left out: a float32 policy would answer otherwise
    than in its training.

    Raises:
        ValueError: a shard is missing or unreadable, ranks disagree, or the checkpoint is that of a LoRA adapter.
    """
    import torch
    from torch.distributed.tensor import DTensor
    from verl.model_merger.base_model_merger import ModelMergerConfig
    from verl.model_merger.fsdp_model_merger import FSDPModelMerger, merge_non_dtensor_shards

    folder = model.shards
    merger = FSDPModelMerger(ModelMergerConfig("merge", "fsdp", local_dir=str(folder), hf_model_config_path=model.path))
    try:
        world = merger._get_world_size()
        first = merger._load_rank_zero_state_dict(world)
        total, _ = merger._calculate_shard_configuration(*merger._extract_device_mesh_info(first, world))
        rest = [folder / f"model_world_size_{world}_rank_{rank}.pt" for rank in range(1, total)]
        ranks = [first, *[torch.load(path, map_location="cpu", weights_only=False) for path in rest]]
        whole: dict[str, Any] = {}
        for name in list(first):
            parts = [rank.pop(name) for rank in ranks]
            if isinstance(parts[0], DTensor):
                tensors = [part._local_tensor for part in parts]
                whole[name] = merger._merge_by_placement(tensors, parts[0].placements[-1])
            else:
                whole[name] = merge_non_dtensor_shards(name, parts)
    except Exception as error:  # whatever torch or verl make of a damaged file
        raise ValueError(f"the checkpoint {folder} cannot be read: {type(error).__name__}: {error}") from error
    if any("lora_" in name for name in whole):
        raise ValueError(
            f"{folder} is the checkpoint of a LoRA adapter. Remedy: python -m verl.model_merger merge --backend fsdp "
            f"--local_dir {folder} --target_dir MERGED, serve it with its adapter and give evaluate.endpoint"
        )
    return whole


def _weights(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return sorted(path for pattern in patterns for path in folder.glob(pattern))


def _fingerprint(folder: Path) -> str:
    files = _weights(folder, (*WEIGHTS, "*/adapter_model.safetensors"))
    facts = [(str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _suggestion(folder: Path) -> str:
    """The checkpoints that are there, for somebody who named a run's folder or a step that it does not have."""
    steps = complete_steps(folder) if folder.is_dir() else []
    return (
        ". Complete checkpoints there: " + ", ".join(f"{folder}/global_step_{step}" for step in steps) if steps else ""
    )
