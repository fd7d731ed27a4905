"""Composes configurations, and explains Hydra's errors by the closest known key, recipe or group."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.hydra import Hydra
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from verl_ext.environments import refusal

# Our groups of configurations: a misspelt `+recipe=…` would be a plain key, and the run a stock one.
GROUPS = ("recipe", "base")


def composed(name: str, overrides: Sequence[str], config_dir: str | None = None, hydra_too: bool = False) -> DictConfig:
    """The configuration of a command line. To be called under `hydra.initialize…`.

    Args:
        name: of the primary configuration.
        overrides: as on the command line.
        config_dir: a folder with further recipes, as `--config-dir`.
        hydra_too: with Hydra's own section.

    Raises:
        hydra.errors.HydraException: it cannot be composed.
    """
    if config_dir and not Path(config_dir).is_dir():  # Hydra would only warn
        raise ConfigCompositionException(
            f"--config-dir {config_dir} is no folder. Remedy: the folder that contains recipe/, where your recipe is"
        )
    search = [f"hydra.searchpath=[{_quoted(f'file://{Path(config_dir).resolve()}')}]"] if config_dir else []
    return hydra.compose(name, overrides=[*search, *overrides], return_hydra_config=hydra_too)


def _quoted(text: str) -> str:
    """As a value of Hydra's command line, whose unquoted ones have neither umlauts nor brackets."""
    return "'" + re.sub(r"(\\*)'", r"\1\1\'", text) + "'"


def install() -> None:
    """Wrap `Hydra.compose_config`, through which every command and `hydra.compose` go; only its errors change.

    verl's command composes before any code of ours runs, so there is no other place to explain its refusals.
    """
    stock = Hydra.compose_config
    if hasattr(stock, "__wrapped__"):
        return

    @functools.wraps(stock)
    def compose_config(self: Hydra, config_name: str | None, overrides: list[str], *args: Any, **kw: Any) -> DictConfig:
        if problem := refusal(recipes_in(overrides)):
            raise ConfigCompositionException(problem)
        try:
            config = stock(self, config_name, overrides, *args, **kw)
        except ConfigCompositionException as error:
            text = _explanation(error, overrides, lambda kept: stock(self, config_name, kept, RunMode.RUN))
            if text is None:
                raise
            raise ConfigCompositionException(text) from None
        _check_groups(overrides, self.config_loader.list_groups(""))
        if kw.get("with_log_configuration"):  # a run, not --cfg
            _check_recipe(config)
        return config

    Hydra.compose_config = compose_config  # type: ignore[method-assign]


def recipes_in(overrides: Sequence[str]) -> list[str]:
    """Names of the recipes that a command line asks for: `+recipe=a`, `+recipe=[a,b]`."""
    values = [one.partition("=")[2] for one in overrides if one.lstrip("+").partition("=")[0] == "recipe"]
    return [name.strip() for value in values for name in value.strip("[]").split(",") if name.strip()]


def _explanation(error: Exception, overrides: list[str], compose: Callable[[list[str]], DictConfig]) -> str | None:
    """Why Hydra refused, with the closest allowed name; None: its own message is better."""
    from verl_ext.settings import unknown_name

    first = str(error).splitlines()[0]
    if isinstance(error, MissingConfigException) and error.options and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return f"{first}: {unknown_name(group, name, error.options)}"
    kept, about = overrides, ""
    # For a group, Hydra's own message has the remedy.
    while refused := re.match(r"Could not override '([^'.]+\.[^']+)'", str(error)):
        rest = [one for one in kept if one.partition("=")[0] != refused[1]]
        if len(rest) == len(kept):
            break
        about, kept = about or next(one for one in kept if one not in rest), rest
        try:
            return _missing_key(about, compose(kept))
        except HydraException as another:
            error = another
    return None


def _missing_key(override: str, config: DictConfig) -> str | None:
    """About the first part of an override's key that the configuration does not have."""
    from verl_ext.settings import section_at, unknown_key
    from verl_ext.trainer.config import MasConfig

    key = override.partition("=")[0].split(".")
    node, number = config, 0
    while OmegaConf.is_dict(node) and key[number] in node:
        node, number = node[key[number]], number + 1
    part, above = key[number], key[:number]
    path, ours = ".".join(above), above[:1] == ["mas"]
    section = section_at(MasConfig, above[1:]) if ours else None
    if not OmegaConf.is_dict(node) and (node is not None or section is None):
        return None
    known = _known_names(config, path, node)
    if part in known or section and part in section.model_fields:
        null = f" ({path} is null)" if node is None else ""
        return f"{path}.{part} is not set by this recipe{null}; it is added with a plus: +{override}"
    takes = (node.get("_target_") if node else None) or (path if ours and section is None else None)
    added = f"; what else {takes} takes is added with a plus: +{override}" if takes else ""
    return unknown_key(part, section.model_fields if section else known, path, added)


def _known_names(config: DictConfig, path: str, node: Any) -> list[str]:
    """The keys of a section. Of `mas.agents`: without those that are null, with the names that the workflow lists."""
    names = list(map(str, node)) if OmegaConf.is_dict(node) else []
    if path != "mas.agents":
        return names
    listed = OmegaConf.select(config, "mas.workflow.agents")
    names = [name for name in names if node[name] is not None]
    return names + [str(name) for name in listed if name not in names] if OmegaConf.is_list(listed) else names


def _check_groups(overrides: list[str], groups: list[str]) -> None:
    for key, _, value in (one.lstrip("+").partition("=") for one in overrides if one.startswith("+")):
        close = get_close_matches(key, GROUPS, n=1, cutoff=0.75)
        if close and key not in groups:
            raise ConfigCompositionException(f"unknown group {key!r}; did you mean +{close[0]}={value}?")


def _check_recipe(config: DictConfig) -> None:
    """Refuse a run without a recipe and without a rollout engine; verl's own message would not help."""
    rollout = OmegaConf.select(config, "actor_rollout_ref.rollout")
    if rollout is not None and "mas" not in config and OmegaConf.is_missing(rollout, "name"):
        raise ConfigCompositionException(
            "no recipe is given, and verl's own configuration lacks an engine (actor_rollout_ref.rollout.name).\n"
            "Remedy: +recipe=mhgpo_tiny, which runs on any machine, or another one of configs/recipe"
        )
