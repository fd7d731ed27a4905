"""Composition of configurations outside of verl's own command, with Hydra's errors on misspelt keys made kinder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import hydra
from hydra.errors import ConfigCompositionException, HydraException
from omegaconf import DictConfig, OmegaConf

from verl_ext.trainer.typed import check_keys


def composed(name: str, overrides: Sequence[str], config_dir: str | None = None, hydra_too: bool = False) -> DictConfig:
    """The configuration of a command line. To be called under `hydra.initialize…`.

    Args:
        name: of the primary configuration.
        overrides: as on the command line.
        config_dir: a folder with further recipes, as `--config-dir`.
        hydra_too: with Hydra's own section.

    Raises:
        ValueError: an override of a key that is not there: names the closest ones.
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
        _refuse(refused[1].split("."), config)
        raise


def _refuse(key: Sequence[str], config: DictConfig) -> None:
    """Raise ValueError at the first part of a key that a configuration does not have."""
    node = config
    for number, part in enumerate(key):
        if not OmegaConf.is_dict(node):
            return
        try:
            check_keys([part], [str(name) for name in node], ".".join(key[:number]))
        except ValueError as error:
            if "_target_" not in node:
                raise
            raise ValueError(
                f"{error}; what else {node['_target_']} takes is added with a plus: +{'.'.join(key)}=..."
            ) from None
        node = node[part]
