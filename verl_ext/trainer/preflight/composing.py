"""Composition of configurations outside of verl's own command, with Hydra's errors on misspelt keys made kinder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import hydra
from hydra.errors import ConfigCompositionException, HydraException
from omegaconf import DictConfig, OmegaConf

from verl_ext.trainer.config import MasConfig
from verl_ext.trainer.preflight.typed import check_keys, keys_at


def composed(name: str, overrides: Sequence[str], config_dir: str | None = None, hydra_too: bool = False) -> DictConfig:
    """The configuration of a command line. To be called under `hydra.initialize…`.

    Args:
        name: of the primary configuration.
        overrides: as on the command line.
        config_dir: a folder with further recipes, as `--config-dir`.
        hydra_too: with Hydra's own section.

    Raises:
        ValueError: an override of a key that is not there: names the closest ones, or says that it needs a plus.
        hydra.errors.HydraException: anything else that Hydra refuses.
    """
    search = [f"hydra.searchpath=[file://{Path(config_dir).resolve()}]"] if config_dir else []

    def compose(kept: Sequence[str]) -> DictConfig:
        return hydra.compose(name, overrides=[*search, *kept], return_hydra_config=hydra_too)

    try:
        return compose(overrides)
    except ConfigCompositionException as error:
        refused = re.match(r"Could not override '([^'.]+\.[^']+)'", str(error))  # of a group Hydra says what to write
        rest = [one for one in overrides if refused is None or one.partition("=")[0] != refused[1]]
        if refused is None or len(rest) == len(overrides):
            raise
        try:
            config = compose(rest)
        except HydraException:
            raise error from None
        _refuse(next(one for one in overrides if one not in rest), config)
        raise


def _refuse(override: str, config: DictConfig) -> None:
    """Raise ValueError at the first part of an override's key that a configuration does not have."""
    key = override.partition("=")[0].split(".")
    node = config
    for number, part in enumerate(key):
        if not OmegaConf.is_dict(node):
            return
        if part not in node:
            _refuse_part(part, ".".join(key[:number]), node, override)
        node = node[part]


def _refuse_part(part: str, path: str, node: DictConfig, override: str) -> None:
    ours, *below = path.split(".")
    known = keys_at(MasConfig, below) if ours == "mas" else None
    if known is not None and part in known:
        raise ValueError(f"{path}.{part} is not set by this recipe; it is added with a plus: +{override}")
    try:
        check_keys([part], known or [str(name) for name in node], path)
    except ValueError as error:
        takes = node.get("_target_") or (path if ours == "mas" and known is None else None)
        if takes is None:
            raise
        raise ValueError(f"{error}; what else {takes} takes is added with a plus: +{override}") from None
