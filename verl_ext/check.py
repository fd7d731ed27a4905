"""Check a run's configuration on any machine, without accelerators and without starting anything.

    python -m verl_ext.check +recipe=mhgpo mas.sampling.strategy=fof
    python -m verl_ext.check --here --gpu_memory 24 +recipe=mhgpo_24gb
    python -m verl_ext.check --strict +recipe=mhgpo

The configuration is composed as `python -m verl.trainer.main_ppo` composes it. Exit status: 0, it is right; 2, it is
wrong; 1, under --here: this machine lacks packages, GPUs or CPUs for it; 1, under --strict: that, or something else is
missing, or by the estimate does not fit into the GPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

import verl_ext.plugin  # noqa: F401  (recipes on Hydra's search path, as `import verl` does it)
from verl_ext.tools.base import ToolError
from verl_ext.trainer.config import read_mas_config
from verl_ext.trainer.preflight import checks
from verl_ext.trainer.preflight.composing import composed
from verl_ext.trainer.preflight.data import check_data
from verl_ext.trainer.preflight.plan import Report, add_model, add_plan, listed, parquet_rows

SEARCHES = ("verl_ext.tools.retrieval.search_tool", "verl_ext.tools.web.web_search")
SIMULATOR = "verl_ext.tools.simulator.simulator"
# Settings of tools that name files or folders; `sources` stands for the paths of a catalogue's, `recording` for the
# cache that a simulator replays.
FILES = ("index", "corpus", "sources", "recorded", "games", "folder", "recording")


def examine(
    overrides: Sequence[str], config_dir: str | None = None, gpu_memory: float = 80.0, strict: bool = False
) -> Report:
    """Compose a training configuration and check it.

    Args:
        overrides: as on the command line of `verl.trainer.main_ppo`.
        config_dir: its `--config-dir`.
        gpu_memory: GiB of one GPU.
        strict: ask retrieval servers whether they answer.

    Raises:
        ValueError: an override of a key that is not there.
        hydra.errors.HydraException: it cannot be composed (e.g. an unknown recipe).
    """
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        config = composed("ppo_trainer", overrides, config_dir, hydra_too=True)
        report = Report(config)
        report.attempt(checks.check_keys_known, config, list(overrides))
    before = len(report.problems)
    report.attempt(checks.check_multi_agent, config)
    report.attempt(_check_with_verl, report)
    if len(report.problems) == before:
        add_plan(report)
        add_model(report, gpu_memory)
        _add_paths(report)
        _add_tools(report, strict)
    return report


def _check_with_verl(report: Report) -> None:
    """verl's own checks, quietly; without the critic's model section, for which verl would load a tokenizer.

    LoRA's rank is held against a list of vLLM's, where vLLM is installed.
    """
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    config = report.config.copy()
    config.critic.model = None
    model, engine = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout.name
    adapters = model.lora_rank > 0 and not model.lora.merge
    if adapters and engine == "vllm" and importlib.util.find_spec("vllm") is None:
        model.lora_rank = 0
        report.facts.append(("not checked", "whether vLLM has LoRA of this rank: it is not installed"))
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        try:
            validate_config(config, need_reference_policy(config), need_critic(config))
        except ImportError as error:
            report.facts.append(("not checked", f"verl's validate_config, which needs a missing package: {error}"))


def _add_paths(report: Report) -> None:
    config, made = report.config, report.config.mas.prepare is not None
    absent = []
    for name in ("train_files", "val_files"):
        for path in listed(config.data[name]):
            if "://" in path:
                state = "remote"
            elif Path(path).expanduser().is_file():
                state = f"{parquet_rows(path)} rows" if path.endswith(".parquet") else "present"
            else:
                state = "made at the start by mas.prepare" if made else "missing"
                absent.append(path)
            report.facts.append((f"data.{name}", f"{path}: {state}"))
    if not made:
        report.missing += [f"the data file {path} (data_prep/ has a script per data set)" for path in absent]
    if not absent:
        report.attempt(check_data, config)
    path = str(config.actor_rollout_ref.model.path)
    if not Path(path).expanduser().is_dir():
        looks_local = path.startswith((".", "/", "~")) or path.count("/") != 1
        state = (
            "missing" if looks_local else "a hub name; the machine that trains must reach the hub, or have it cached"
        )
        report.facts.append(("model.path", f"{path}: {state}"))
        report.missing += [f"the model {path}"] if looks_local else []


def _add_tools(report: Report, strict: bool) -> None:
    """Tools one by one; what only is not there yet is missing, anything else that is refused is wrong."""
    for name, section in read_mas_config(report.config).tools.items():
        sources = _sources(section)
        absent = [p for key in FILES for p in listed(sources.get(key)) if not Path(p).exists()]
        asked, without = report.config.copy(), _unasked(section)
        asked.mas.tools = {name: section if strict else without}
        state = "missing" if absent else "remote, not asked" if without != section and not strict else "present"
        try:
            checks.check_tools(asked)
        except ValueError as error:
            not_here = isinstance(error.__cause__, ToolError | ModuleNotFoundError)
            if not not_here and not any(path in str(error) for path in absent):
                report.problems.append(str(error))
                continue
            state = "missing"
            if report.config.mas.prepare is not None and absent:
                state = "made at the start by mas.prepare"
            else:
                report.missing.append(str(error))
        shown = ", ".join(f"{key} {', '.join(listed(value))}" for key, value in sources.items())
        report.facts.append((f"tools.{name}", f"{shown}: {state}" if shown else "no source"))


def _sources(section: dict[str, Any]) -> dict[str, Any]:
    """Where a tool takes what it knows from: files, folders, servers."""
    found = {key: section[key] for key in ("url", *FILES) if section.get(key) and key != "sources"}
    given = section.get("sources") or []
    paths = [path for one in given if one.get("kind") != "functions" for path in listed(one.get("path"))]
    backend = section.get("backend") or {}
    found |= {"sources": paths} if paths else {}
    found |= {key: backend[key] for key in ("endpoint", "url", "index", "corpus") if backend.get(key)}
    replays = backend.get("_target_") == SIMULATOR and backend.get("mode") == "replay" and backend.get("cache")
    return found | ({"recording": backend["cache"]} if replays else {})


def _unasked(section: dict[str, Any]) -> dict[str, Any]:
    """The section with those of its servers left in peace that a run asks before its start."""
    if section.get("_target_") in SEARCHES and section.get("url"):
        return section | {"check": False}
    backend = section.get("backend") or {}
    if backend.get("_target_") == SIMULATOR and (backend.get("endpoint") or backend.get("url")):
        return section | {"backend": backend | {"check": False}}
    return section


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m verl_ext.check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="+", help="as for python -m verl.trainer.main_ppo")
    parser.add_argument("--config-dir", help="a folder with recipes of one's own, as for main_ppo")
    parser.add_argument("--gpu_memory", type=float, default=80.0, help="GiB of one GPU (default 80)")
    parser.add_argument("--here", action="store_true", help="packages, GPUs or CPUs that lack here are an error")
    parser.add_argument("--strict", action="store_true", help="the same for data, model, servers and memory")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Check, print the report, and return the exit status."""
    arguments = parse_arguments(argv)
    try:
        report = examine(arguments.overrides, arguments.config_dir, arguments.gpu_memory, arguments.strict)
    except (ValueError, HydraException, OmegaConfBaseException) as error:
        print(f"The configuration cannot be composed.\n{error}", file=sys.stderr)
        return 2
    print(report)
    if report.problems:
        print("\nThis configuration is wrong.", file=sys.stderr)
        return 2
    folder = ["--config-dir", arguments.config_dir] if arguments.config_dir else []
    command = shlex.join(["python", "-m", "verl.trainer.main_ppo", *folder, *arguments.overrides])
    incomplete = report.lacking + report.missing
    print(f"\nThe configuration is right. {'Once nothing is missing: ' if incomplete else ''}{command}")
    return 1 if (incomplete if arguments.strict else report.lacking if arguments.here else []) else 0


if __name__ == "__main__":
    sys.exit(main())
