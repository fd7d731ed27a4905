"""The settings of a run: recorded with its checkpoints, and compared before it continues from one."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from verl_ext.storage.files import write_file
from verl_ext.trainer.preflight.data import listed
from verl_ext.trainer.sections import arguments_of
from verl_ext.trainer.state import checkpoint
from verl_ext.trainer.state.contents import fingerprints, own_files

# These may change when a run continues: they do not change what is learned, but for the last bits of a sum.
FREE = (
    # outputs, loggers, frequencies, how long
    *("trainer.default_*_dir", "trainer.*_name", "trainer.logger", "trainer.log_val_generations", "trainer.*_data_dir"),
    *("trainer.total_*", "trainer.*_freq", "trainer.val_*", "trainer.*_to_keep", "trainer.remove_previous_*"),
    *("trainer.keep_best", "trainer.resume_*", "trainer.esi_*", "trainer.del_local_*", "trainer.checkpoint_callback_*"),
    *("mas.budget.*", "mas.trajectory_log.*", "mas.tracing.*", "mas.poll_interval", "mas.gateway.*"),
    *("*.trace.*", "*.prometheus.*", "*profiler.*"),
    # machines, processes, memory
    *("trainer.nnodes", "trainer.n_gpus_per_node", "trainer.ray_*", "ray_kwargs.*", "transfer_queue.*"),
    *(
        f"actor_rollout_ref.rollout.{key}"
        for key in ("agent.num_workers", "*_parallel_size", "n_gpus_per_node", "nnodes")
    ),
    *("*.gpu_memory_utilization", "*.max_num_*", "*micro_batch_size*", "*_token_len_per_gpu", "*_offload"),
    *("*.enable_gradient_checkpointing", "*.ulysses_sequence_parallel_size", "*.checkpoint.async_save"),
    *("data.dataloader_num_workers", "data.val_*", "actor_rollout_ref.rollout.val_kwargs.*"),
    # when a run stops by itself
    *("mas.limits.warn_after", "mas.limits.stop_after", "mas.failure.max_left_out"),
    # where a served model is; which one it is counts
    *(
        f"mas.{place}.{key}"
        for place in ("agents.*.endpoint", "workflow.models.*", "judge")
        for key in ("url", "api_key_env", "concurrency", "timeout", "retries")
    ),
)

# Begins the names of what is no setting.
CONTENTS = "contents of "
SERVED = "mas.agents.*.endpoint.url"
OVERSAMPLING = ("mas.sampling.oversample", "mas.sampling.max_cuts")


def check_same_run(config: DictConfig, record: bool = True) -> None:
    """Record the settings of a run for its checkpoints; refuse to continue from a checkpoint with other settings.

    Only what `resume_mode=auto` finds is checked: `disable` and `resume_path` are the user's explicit wish.

    Args:
        record: False: only check, and write nothing.

    Raises:
        ValueError: the folder's last checkpoint is of a run with other settings (names those that differ), or cannot
            be found (see `last_checkpoint`).
    """
    if config.trainer.get("val_only", False):
        return
    folder = Path(config.trainer.default_local_dir)
    step = checkpoint.last_checkpoint(folder) if config.trainer.resume_mode == "auto" else None
    if step is None and not record:
        return
    now = settings_of(config) | _contents_of(config)
    before = checkpoint.read_marker(checkpoint.place_of(folder, step))["settings"] if step is not None else {}
    both = [name for name in before if name.startswith(CONTENTS) and name in now]
    if other := [name.removeprefix(CONTENTS) for name in both if before[name] != now[name]]:
        print(
            f"Warning: since the checkpoint of step {step}, from which this run goes on, these files have changed: "
            f"{', '.join(other)}. What has been learned and measured so far is of the earlier ones.",
            file=sys.stderr,
            flush=True,
        )
    changed = differences(*({k: v for k, v in one.items() if not k.startswith(CONTENTS)} for one in (before, now)))
    changed = changed if before else []
    if changed:
        raise ValueError(
            f"{folder} holds a run with other settings, which would be continued:\n" + "\n".join(changed) + "\n"
            "Remedy: another folder (trainer.default_local_dir=…), or remove this one; to go on with other settings on "
            "purpose: trainer.resume_mode=resume_path and trainer.resume_from_path=…/global_step_…"
        )
    if record:
        write_file(folder / checkpoint.SETTINGS_FILE, json.dumps(now, indent=1))


def _contents_of(config: DictConfig) -> dict[str, str]:
    """Fingerprints of the system's own files and of the data. A run is told of a change, and goes on."""
    data = [Path(path) for name in ("train_files", "val_files") for path in listed(config.data.get(name))]
    target = OmegaConf.select(config, "mas.workflow._target_")
    files = fingerprints(data) | (own_files(get_object(target)) if target else {})
    return {f"{CONTENTS}{name}": found for name, found in files.items()}


def check_ranks(config: DictConfig) -> None:
    """Check that a run has as many ranks as the checkpoint that it continues from: FSDP's files are one per rank.

    Files that another machine keeps on its own disk are not seen here, and not checked.

    Raises:
        ValueError: it has not; names both numbers and the remedy.
    """
    place, ranks = checkpoint.resumed_from(config), config.trainer.nnodes * config.trainer.n_gpus_per_node
    if place is None:
        return
    names = [path.name for part in checkpoint.WEIGHTS for path in (place / part).rglob("*_world_size_*_rank_*.pt")]
    saved = sorted({int(found[1]) for name in names if (found := re.search(r"_world_size_(\d+)_rank_", name))})
    if saved and saved != [ranks]:
        wanted = " and ".join(map(str, saved))
        raise ValueError(
            f"{place} was saved by {wanted} ranks (trainer.nnodes × trainer.n_gpus_per_node), and this run has {ranks}:"
            f" {config.trainer.nnodes} × {config.trainer.n_gpus_per_node}. verl reads a checkpoint only with as many "
            f"ranks as have written it. Remedy: nnodes × n_gpus_per_node = {wanted}; or a new run from its weights, "
            f"with a new optimiser: python -m verl.model_merger merge --backend fsdp --local_dir {place / 'actor'} "
            "--target_dir MODEL, then actor_rollout_ref.model.path=MODEL and another trainer.default_local_dir"
        )


def settings_of(config: DictConfig) -> dict[str, Any]:
    """Dotted name -> value of each setting that must not change. Of tools and judges counts on what answers depend."""
    whole = {key: plain(config[key]) for key in config if key != "hydra"}
    tools = whole.get("mas", {}).get("tools") or {}
    for name, section in tools.items():
        if section and "_target_" in section:
            tools[name] = plain(identity_of(section))
    judge = whole.get("mas", {}).get("judge") or {}
    if judge.get("templates") and (questions := Path(judge["templates"])).is_file():
        judge["templates"] = f"questions of SHA-256 {hashlib.sha256(questions.read_bytes()).hexdigest()}"
    found = {name: value for key in whole for name, value in leaves(whole[key], str(key)).items()}
    kept = {name: value for name, value in found.items() if not any(fnmatchcase(name, free) for free in FREE)}
    if kept.get("mas.sampling.oversample") == 1:  # off: as it was before there was the setting, so older runs go on
        kept = {name: value for name, value in kept.items() if name not in OVERSAMPLING}
    # Whoever answers for an agent counts: without an address, a policy does.
    kept |= {name: "given" for name, url in found.items() if url and fnmatchcase(name, SERVED)}
    horizon = {name: found.get(name) for name in ("trainer.total_epochs", "trainer.total_training_steps")}
    policies = [f"mas.policies.{name}" for name in whole.get("mas", {}).get("policies") or {}]
    own = [f"{policy}.{part}" for policy in policies for part in ("actor", "critic")]
    parts = ("actor_rollout_ref.actor", "critic", *own)
    return kept | (horizon if any(_has_horizon(found, part) for part in parts) else {})


def _has_horizon(settings: dict[str, Any], part: str) -> bool:
    """Whether the learning rate of actor or critic depends on the number of steps of the whole run."""
    kind, share = (settings.get(f"{part}.optim.{name}") for name in ("lr_scheduler_type", "lr_warmup_steps_ratio"))
    return kind not in (None, "constant") or bool(share)


def identity_of(tool: dict[str, Any]) -> dict[str, Any]:
    """The settings on which a tool's answers depend: all, unless its `_target_` has a function `identity`."""
    identity = getattr(get_object(tool["_target_"]), "identity", dict)
    return {"_target_": tool["_target_"], **identity(**arguments_of(tool))}


def leaves(value: Any, name: str = "") -> dict[str, Any]:
    """Dotted name -> value, for each value of nested mappings that is no mapping with entries."""
    if not isinstance(value, dict) or not value:
        return {name: value}
    prefix = f"{name}." if name else ""
    return {leaf: found for key in value for leaf, found in leaves(value[key], f"{prefix}{key}").items()}


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """A line per name whose value differs; an absent one counts as null."""
    names = [name for name in dict.fromkeys([*before, *now]) if before.get(name) != now.get(name)]
    return [f"  {name}: {before.get(name)} there, {now.get(name)} here" for name in names]


def plain(value: Any) -> Any:
    """As JSON reads it back."""
    value = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    return json.loads(json.dumps(value, default=str))
