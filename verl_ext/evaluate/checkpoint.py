"""Finds the model that `evaluate.model` names: a Hugging Face folder, a hub name, or a checkpoint of a training run."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from verl_ext.engine.lora.adapter_files import FOLDER, read_record
from verl_ext.trainer.policies.checkpoints import read_record as read_policies
from verl_ext.trainer.state.checkpoint import complete_steps

# verl's file with rank and alpha of an adapter.
LORA = "lora_train_meta.json"
WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "model_world_size_*_rank_*.pt")


@dataclass(frozen=True)
class Model:
    """A model to be loaded.

    Attributes:
        path: folder of its configuration and tokenizer (and weights, unless `shards`), or a hub name.
        shards: folder of the FSDP shards that hold its weights; None: they are in `path`.
        adapters: folder of a checkpoint of adapters per agent, for which `path` is the base; None: there are none.
        lora: of the adapters: names, rank, alpha.
        policies: of a checkpoint of several policies (`mas.policies`) each one's model, by name; then the rest is the
            first one's, but for `fingerprint`.
        agents, chat_templates: of each policy.
        checkpoint: what names all of them.
        fingerprint: of the files of its weights (names, sizes, times); empty for a hub name.
    """

    path: str
    shards: Path | None = None
    fingerprint: str = ""
    adapters: Path | None = None
    lora: dict[str, Any] = field(default_factory=dict)
    policies: dict[str, Model] = field(default_factory=dict)
    agents: dict[str, list[str]] = field(default_factory=dict)
    chat_templates: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    checkpoint: str = ""

    @property
    def source(self) -> str:
        """Where its weights are; of a checkpoint of adapters, where the adapters are."""
        return self.checkpoint or str(self.adapters or self.shards or self.path)

    @property
    def step(self) -> int | None:
        """Training step of a checkpoint of a run; None: it is none."""
        found = re.findall(r"global_step_(\d+)", self.source)
        return int(found[-1]) if found else None


def find_model(name: str, base: str = "") -> Model:
    """Find the model of a path or hub name.

    Args:
        base: a folder with the base of adapters per agent, if the base of their training is not on this machine.

    Raises:
        ValueError: a folder without weights, an unfinished or unsupported checkpoint, or a path that does not exist.
    """
    folder = Path(name).expanduser()
    if not folder.exists():
        of_a_folder = "/" in name and folder.parent.is_dir()  # e.g. runs/typo, which also has the form of a hub name
        if of_a_folder or folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
            raise ValueError(f"evaluate.model={name} does not exist{_suggestion(folder.parent)}")
        return Model(name)
    actor = folder / "actor" if (folder / "actor").is_dir() else folder
    if policies := read_policies(actor):
        return of_policies(policies, actor, str(folder))
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


def of_policies(policies: dict[str, dict[str, Any]], actor: Path | None = None, name: str = "") -> Model:
    """The models of several policies.

    Args:
        policies: {name: {agents, model, frozen, chat_template}}, as a checkpoint records them.
        actor: its folder of the policies' weights; None: each has those of its model.
        name: of the checkpoint.

    Raises:
        ValueError: see `find_model`.
    """
    found = {
        one: find_model(str(actor / one) if actor is not None and not about["frozen"] else about["model"])
        for one, about in policies.items()
    }
    whole = hashlib.sha256("".join(model.fingerprint for model in found.values()).encode()).hexdigest()[:16]
    return replace(
        next(iter(found.values())),
        fingerprint=whole,
        policies=found,
        agents={one: about["agents"] for one, about in policies.items()},
        chat_templates={one: about["chat_template"] for one, about in policies.items()},
        checkpoint=name or ", ".join(model.source for model in found.values()),
    )


def full_weights(model: Model) -> dict[str, Any]:
    """Whole tensors by Hugging Face name, from the shards of a checkpoint, in the precision in which they were saved.

    Uses verl's merger without its conversion to bfloat16, which would change the answers of a float32 policy, and
    without its loading of any pickle, which could run code.

    A LoRA adapter is merged into them.

    Raises:
        ValueError: a shard is missing, unreadable or holds more than tensors, or ranks disagree; see `merged`.
    """
    from torch.distributed.tensor import DTensor
    from verl.model_merger.base_model_merger import ModelMergerConfig
    from verl.model_merger.fsdp_model_merger import FSDPModelMerger, merge_non_dtensor_shards

    assert model.shards is not None, "find_model has named no shards"
    folder = model.shards
    merger = FSDPModelMerger(ModelMergerConfig("merge", "fsdp", local_dir=str(folder), hf_model_config_path=model.path))
    try:
        world = merger._get_world_size()
        first = _shard(folder, world, 0)
        total, _ = merger._calculate_shard_configuration(*merger._extract_device_mesh_info(first, world))
        ranks = [first, *[_shard(folder, world, rank) for rank in range(1, total)]]
        whole: dict[str, Any] = {}
        for name in list(first):
            parts = [rank.pop(name) for rank in ranks]
            if isinstance(parts[0], DTensor):
                tensors = [part._local_tensor for part in parts]
                whole[name] = merger._merge_by_placement(tensors, parts[0].placements[-1])
            else:
                whole[name] = merge_non_dtensor_shards(name, parts)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"the checkpoint {folder} holds more than tensors, and loading it could run code of whoever made it. "
            f"Remedy, only if you trust them: python -m verl.model_merger merge --backend fsdp --local_dir {folder} "
            "--target_dir MERGED, then evaluate.model=MERGED"
        ) from error
    except Exception as error:  # torch and verl raise many kinds of errors for a damaged file
        raise ValueError(f"the checkpoint {folder} cannot be read: {type(error).__name__}: {error}") from error
    return merged(whole, folder) if any("lora_" in name for name in whole) else whole


def merged(whole: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The weights of a model with its LoRA adapter added, W + alpha/r · B·A, under the names of the model itself.

    The product is computed as peft does it: in the precision in which the adapter was saved.

    Args:
        whole: by peft's names, `base_model.model.….base_layer.weight`, `….lora_A.default.weight`.
        folder: of the checkpoint; its `lora_train_meta.json` has r and alpha.

    Raises:
        ValueError: the file is missing or damaged, or the adapter has parts other than those of linear layers.
    """
    remedy = "Remedy: merge it with peft (PeftModel.merge_and_unload), then evaluate.model=MERGED"
    try:
        about = json.loads((folder / LORA).read_text())
        scaling = about["lora_alpha"] / about["r"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{folder} is the checkpoint of a LoRA adapter, and its {LORA} does not say rank and alpha: "
            f"{type(error).__name__}: {error}. {remedy}"
        ) from error
    plain, sides = dict[str, Any](), dict[str, dict[str, Any]]()
    for name, tensor in whole.items():
        short = name.replace("_fsdp_wrapped_module.", "").removeprefix("base_model.model.")
        layer, found, side = short.partition(".lora_")
        if found:
            sides.setdefault(layer, {})[side.removesuffix(".weight").removesuffix(".default")] = tensor
        else:
            plain[short.replace(".base_layer.", ".")] = tensor
    for layer, parts in sides.items():
        if parts.keys() != {"A", "B"} or f"{layer}.weight" not in plain:
            raise ValueError(f"{folder}: the adapter of {layer} has {', '.join(sorted(parts))}, not A and B. {remedy}")
        weight = plain[f"{layer}.weight"]
        plain[f"{layer}.weight"] = weight + ((parts["B"] @ parts["A"]) * scaling).to(weight.dtype)
    return plain


def _shard(folder: Path, world: int, rank: int) -> dict[str, Any]:
    import torch

    return torch.load(folder / f"model_world_size_{world}_rank_{rank}.pt", map_location="cpu", weights_only=True)


def _weights(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return sorted(path for pattern in patterns for path in folder.glob(pattern))


def _fingerprint(folder: Path) -> str:
    files = _weights(folder, (*WEIGHTS, "*/adapter_model.safetensors"))
    facts = [(str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _suggestion(folder: Path) -> str:
    """A hint that lists the checkpoints of a run, for a path that is the folder of a run or an absent step."""
    steps = complete_steps(folder) if folder.is_dir() else []
    return (
        ". Complete checkpoints there: " + ", ".join(f"{folder}/global_step_{step}" for step in steps) if steps else ""
    )
