"""Checks of the models' names and of the output folder.

`os.path` says of what may not be read that it is not there; pathlib raises PermissionError.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from verl_ext.trainer.policies.settings import policy_configs
from verl_ext.trainer.preflight.checks import trains_critic
from verl_ext.trainer.preflight.machine import joins_cluster


def check_paths(config: DictConfig) -> None:
    """Check that the models can be found, and make the output folder.

    Raises:
        ValueError: one of them is impossible; names the setting.
    """
    if problems := [*missing_models(config), *unwritable_folder(config)]:
        raise ValueError("\n".join(problems))
    folder = str(config.trainer.default_local_dir)
    try:
        if "://" not in folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(_unwritable(folder, error.strerror or str(error))) from error


def missing_models(config: DictConfig, ask_hub: bool = True) -> list[str]:
    """Why the models of policy and critic cannot be found. None: they are there, or only the machine that trains can
    tell.

    Args:
        ask_hub: look for the name of a model that is not in the hub's cache there (at most 10 seconds each).
    """
    paths: dict[str, str] = {}
    for policy, own in policy_configs(config).items():
        names = ["actor_rollout_ref.model.path", *(["critic.model.path"] if trains_critic(own) else [])]
        for name in names:
            place = name.replace("actor_rollout_ref", f"mas.policies.{policy}") if policy else name
            paths.setdefault(str(OmegaConf.select(own, name)), place)
    found = {name: _missing(path, ask_hub and not joins_cluster(config)) for path, name in paths.items()}
    return [f"{name}={path}: {found[name]}" for path, name in paths.items() if found[name]]


def _missing(path: str, ask_hub: bool) -> str | None:
    folder = Path(path).expanduser()
    if "://" in path or os.path.isfile(folder / "config.json"):
        return None
    if os.path.isdir(folder):
        inner = sorted(str(one.parent) for one in folder.glob("**/config.json"))
        given = f"perhaps {inner[0]}" if inner else "a folder with config.json and the weights"
        return f"the folder has no config.json, so it holds no model. Remedy: {given}"
    if path.startswith((".", "/", "~")) or path.count("/") != 1:
        return (
            "the model's folder does not exist, or may not be read. Remedy: a folder with config.json, or a name of "
            "the hub"
        )
    if not ask_hub or os.environ.get("VERL_USE_MODELSCOPE"):
        return None
    from huggingface_hub import HfApi, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(path, "config.json"), str):
        return None
    try:
        HfApi().model_info(path, timeout=10)
    except Exception as error:  # no such name, no access, no network
        return (
            f"no folder, not in the hub's cache, and not to be had from the hub ({type(error).__name__}). "
            "Remedy: check the name (a gated model needs `hf auth login`), or download it and give its folder"
        )
    return None


def unwritable_folder(config: DictConfig) -> list[str]:
    """Why the output folder cannot be made or written, as far as that shows before it is made."""
    folder = str(config.trainer.default_local_dir)
    there = [one for one in (Path(folder), *Path(folder).absolute().parents) if os.path.exists(one)]
    if "://" in folder or (there[0].is_dir() and os.access(there[0], os.W_OK | os.X_OK)):
        return []
    reason = f"no permission to write in {there[0]}" if there[0].is_dir() else f"{there[0]} is a file"
    return [_unwritable(folder, reason)]


def _unwritable(folder: str, reason: str) -> str:
    return f"trainer.default_local_dir={folder} cannot be written: {reason}. Remedy: name another folder"
