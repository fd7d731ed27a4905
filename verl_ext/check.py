"""Check a run's configuration on any machine, without accelerators and without starting anything.

    verl_ext check +recipe=mhgpo mas.sampling.strategy=fof
    verl_ext check --here --gpu_memory 24 +recipe=mhgpo_24gb
    verl_ext check --device h200 --prompt_tokens 1500 --output_tokens 60 +recipe=mhgpo
    verl_ext check --strict +recipe=mhgpo
    verl_ext check --cfg job +recipe=mhgpo

The configuration is composed as `python -m verl.trainer.main_ppo` composes it. Exit status: 0, it is right; 2, it is
wrong; 1, under --here: this machine lacks packages, GPUs or CPUs for it; 1, under --strict: that, or something else is
missing, or by the estimate does not fit into the GPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_ext.arguments import Parser
from verl_ext.plan.hardware import DEVICES, GIB
from verl_ext.plan.options import add_load, check_load

# What is heavy is imported where it is used: --help answers at once.
if TYPE_CHECKING:
    from omegaconf import DictConfig

    from verl_ext.trainer.preflight.fitting import Sized
    from verl_ext.trainer.preflight.plan import Report

SEARCHES = ("verl_ext.tools.retrieval.search_tool", "verl_ext.tools.web.web_search")
SIMULATOR = "verl_ext.tools.simulator.simulator"
# Settings of tools that name files or folders; `sources` stands for the paths of a catalogue's, `recording` for the
# cache that a simulator replays.
FILES = ("index", "corpus", "sources", "recorded", "games", "folder", "recording")


def compose(overrides: Sequence[str], config_dir: str | None = None) -> DictConfig:
    """The configuration of `verl.trainer.main_ppo` for a command line, with Hydra's own section.

    Raises:
        hydra.errors.HydraException: it cannot be composed (e.g. an unknown recipe).
    """
    import hydra

    import verl_ext.plugin  # noqa: F401  (recipes on Hydra's search path, as `import verl` does it)
    from verl_ext.trainer.preflight.composing import composed

    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        return composed("ppo_trainer", overrides, config_dir, hydra_too=True)


def examine(
    overrides: Sequence[str],
    config_dir: str | None = None,
    gpu_memory: float = 80.0,
    strict: bool = False,
    load: argparse.Namespace | None = None,
) -> Report:
    """Compose a training configuration and check it.

    Args:
        overrides: as on the command line of `verl.trainer.main_ppo`.
        config_dir: its `--config-dir`.
        gpu_memory: GiB of one GPU.
        strict: ask the servers of tools whether they answer.
        load: what is known of a step, as `parse_arguments` gives it; None: nothing.

    Raises:
        hydra.errors.HydraException: it cannot be composed (e.g. an unknown recipe).
    """
    import hydra

    from verl_ext.environments import environments_of
    from verl_ext.trainer.preflight.composing import recipes_in
    from verl_ext.trainer.preflight.plan import Report
    from verl_ext.trainer.preflight.values import check_keys_known

    report = Report(compose(overrides, config_dir))
    for one in environments_of(recipes_in(overrides)):
        report.add("environment", f"{one.package} {one.version}")
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        report.attempt(check_keys_known, report.config, list(overrides))
    fill(report, gpu_memory, strict, load)
    if not report.problems:
        _check_continued(report)
    return report


def _check_continued(report: Report) -> None:
    """Whether the run would go on from a checkpoint that its folder, or `resume_path`, holds."""
    from verl_ext.trainer import lora_setup
    from verl_ext.trainer.state import run_settings

    report.attempt(lora_setup.check_resumed, report.config)
    report.attempt(run_settings.check_ranks, report.config)
    try:
        report.attempt(run_settings.check_same_run, report.config, False)
    except OSError as error:  # of a tool whose files are made at the start
        report.add(
            "not checked", f"whether the run in {report.config.trainer.default_local_dir} has these settings: {error}"
        )


def fill(
    report: Report, gpu_memory: float = 80.0, strict: bool = False, load: argparse.Namespace | None = None
) -> None:
    """Check the report's configuration, whose keys are known; add what it would run if nothing is wrong with it."""
    from verl_ext.engine.precision import settle_run
    from verl_ext.trainer.preflight.checks import check_multi_agent
    from verl_ext.trainer.preflight.data import files_of
    from verl_ext.trainer.preflight.fitting import add_model
    from verl_ext.trainer.preflight.plan import add_plan
    from verl_ext.trainer.preflight.values import check_numbers

    before = len(report.problems)
    report.attempt(check_numbers, report.config)
    if len(report.problems) > before:  # nothing more can be said
        return
    report.attempt(check_multi_agent, report.config)
    for name in ("train_files", "val_files"):
        report.attempt(files_of, report.config.data[name], f"data.{name}")
    report.attempt(_check_with_verl, report)
    if float_type := settle_run(report.config):
        report.add("float type", f"auto, {float_type}")
    if len(report.problems) == before:
        add_plan(report)
        _add_time(report, load or parse_arguments([""]), add_model(report, gpu_memory))
        _add_paths(report, strict)
        _add_tools(report, strict)


def _add_time(report: Report, load: argparse.Namespace, known: dict[str, Sized]) -> None:
    from verl_ext.plan.brief import time_of_a_step

    try:
        first, *others = time_of_a_step(load, report.config, known) or [""]
    except ValueError as error:
        first, others = f"not estimated: {error}", []
    if first:
        report.facts += [("time of a step", first), *(("", text) for text in others)]


def _check_with_verl(report: Report) -> None:
    """verl's own checks of the run, then of each policy.

    Raises:
        ValueError: of a policy; the message begins with its name.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from verl_ext.trainer.policies.settings import policy_configs, read_policies

    _validate(report, report.config)
    sections = read_policies(report.config)
    for name, own in policy_configs(report.config).items() if sections else ():
        try:
            _validate(report, own, sections[name].frozen)
        except (ValueError, AssertionError, NotImplementedError, HydraException, OmegaConfBaseException) as error:
            raise ValueError(f"mas.policies.{name}: {error}") from error


def _validate(report: Report, given: DictConfig, frozen: bool = False) -> None:
    """verl's own checks, quietly; without the critic's model section, for which verl would load a tokenizer.

    LoRA's rank is compared with a list of vLLM's, where vLLM is installed. frozen: nothing trains.
    """
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    config, unchecked = given.copy(), list[str]()
    config.critic.model = None
    model, engine = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout.name
    if model.lora_rank > 0 and not model.lora.merge and engine == "vllm" and find_spec("vllm") is None:
        model.lora_rank = 0
        unchecked.append("whether vLLM has LoRA of this rank: it is not installed")
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        try:
            validate_config(config, need_reference_policy(config), need_critic(config) and not frozen)
        except ImportError as error:
            unchecked.append(f"verl's validate_config, which needs a missing package: {error}")
    for text in unchecked:
        if ("not checked", text) not in report.facts:
            report.add("not checked", text)


def _check_data(report: Report, made: bool) -> None:
    """Files that are made anew may have more questions then."""
    from verl_ext.trainer.preflight.data import TooFewQuestions, check_data

    try:
        check_data(report.config)
    except TooFewQuestions as error:
        if not made:
            raise
        report.notes.append(f"{error}; mas.prepare makes them anew at the start if its arguments have changed")


def _add_paths(report: Report, strict: bool) -> None:
    from verl_ext.trainer.policies.settings import policy_configs
    from verl_ext.trainer.preflight.data import listed, parquet_rows
    from verl_ext.trainer.preflight.paths import missing_models, unwritable_folder

    config, made = report.config, report.config.mas.get("prepare") is not None
    absent = []
    for name in ("train_files", "val_files"):
        for path in listed(config.data[name]):
            state = "remote"
            if "://" not in path and os.path.isfile(Path(path).expanduser()):
                state = f"{parquet_rows(path)} rows" if path.endswith(".parquet") else "present"
            elif "://" not in path:
                state = "made at the start by mas.prepare" if made else "missing"
                absent.append(path)
            report.add(f"data.{name}", f"{path}: {state}")
    if not made:
        report.missing += [
            f"the data file {path} (data_prep/ has a script per data set)" for path in dict.fromkeys(absent)
        ]
    if not absent:
        report.attempt(_check_data, report, made)
    problems = missing_models(config, ask_hub=strict)
    report.missing += problems
    for path in dict.fromkeys(str(own.actor_rollout_ref.model.path) for own in policy_configs(config).values()):
        if not os.path.isdir(Path(path).expanduser()):
            hub = "a hub name; the machine that trains must reach the hub, or have it cached"
            report.add("model.path", f"{path}: {'missing' if any(path in one for one in problems) else hub}")
    report.problems += unwritable_folder(config)


def _add_tools(report: Report, strict: bool) -> None:
    """Tools one by one: files and servers that are not there yet are missing; any other refusal is a problem."""
    from verl_ext.tools.base import ToolError
    from verl_ext.trainer.config import read_mas_config
    from verl_ext.trainer.preflight.checks import check_tools
    from verl_ext.trainer.preflight.data import listed

    for name, section in read_mas_config(report.config).tools.items():
        sources = _sources(section)
        absent = [path for key in FILES for path in listed(sources.get(key)) if not os.path.exists(path)]
        alone, unasked = report.config.copy(), _without_asking(section)
        alone.mas.tools = {name: section if strict else unasked}
        state = "missing" if absent else "remote, not asked" if unasked != section and not strict else "present"
        try:
            check_tools(alone)
        except ValueError as error:
            not_here = isinstance(error.__cause__, ToolError | ModuleNotFoundError)
            if not not_here and not any(path in str(error) for path in absent):
                report.problems.append(str(error))
                continue
            made = absent and report.config.mas.get("prepare") is not None
            state = "made at the start by mas.prepare" if made else "missing"
            report.missing += [] if made else [str(error)]
        shown = ", ".join(f"{key} {', '.join(listed(value))}" for key, value in sources.items())
        report.add(f"tools.{name}", f"{shown}: {state}" if shown else "needs no files and no server")


def _sources(section: dict[str, Any]) -> dict[str, Any]:
    """Files, folders and servers from which a tool takes its knowledge; the tool's own check refuses other values."""
    from verl_ext.trainer.preflight.data import listed

    found = {key: section[key] for key in ("url", *FILES) if isinstance(section.get(key) or None, str | list)}
    given = [one for one in found.pop("sources", ()) if isinstance(one, dict) and one.get("kind") != "functions"]
    if paths := [path for one in given for path in listed(one.get("path"))]:
        found["sources"] = paths
    backend = _backend(section)
    found |= {key: backend[key] for key in ("endpoint", "url", "index", "corpus") if backend.get(key)}
    if backend.get("_target_") == SIMULATOR and backend.get("mode") == "replay" and backend.get("cache"):
        found["recording"] = backend["cache"]
    return found


def _backend(section: dict[str, Any]) -> dict[str, Any]:
    given = section.get("backend")
    return given if isinstance(given, dict) else {}


def _without_asking(section: dict[str, Any]) -> dict[str, Any]:
    """The section of a tool, changed so that its check does not ask the servers that a run asks before its start."""
    backend = _backend(section)
    if section.get("_target_") in SEARCHES and section.get("url"):
        return section | {"check": False}
    if backend.get("_target_") == SIMULATOR and (backend.get("endpoint") or backend.get("url")):
        return section | {"backend": backend | {"check": False}}
    return section


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = Parser("verl_ext check", description=__doc__)
    parser.add_argument("overrides", nargs="*", help="+recipe=NAME KEY=VALUE …, as for verl_ext train")
    parser.add_argument("--config-dir", help="a folder with recipes of one's own, as for main_ppo")
    parser.add_argument("--cfg", choices=["job"], help="print the composed configuration and stop")
    parser.add_argument("--device", choices=DEVICES, help="the GPU, for the time of a step (default: this machine's)")
    parser.add_argument("--gpu_memory", type=float, help="GiB of one GPU (default: the --device's, or 80)")
    parser.add_argument("--here", action="store_true", help="packages, GPUs or CPUs that lack here are an error")
    parser.add_argument("--strict", action="store_true", help="the same for data, model, servers and memory")
    add_load(parser)
    given = parser.parse_args(argv)
    if not given.overrides:
        parser.error("give +recipe=NAME (`verl_ext recipes` lists the names)")
    check_load(parser, given)
    if given.gpu_memory is None:
        given.gpu_memory = DEVICES[given.device].memory / GIB if given.device else 80.0
    return given


def main(argv: Sequence[str] | None = None) -> int:
    """Check, print the report, and return the exit status."""
    arguments = parse_arguments(argv)
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        if arguments.cfg:
            config = compose(arguments.overrides, arguments.config_dir)
            print(OmegaConf.to_yaml(OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])))
            return 0
        report = examine(arguments.overrides, arguments.config_dir, arguments.gpu_memory, arguments.strict, arguments)
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
    when = "To train, once nothing is missing" if incomplete else "To train"
    print(f"\nThe configuration is right. {when}:\n  {command}")
    return 1 if (incomplete if arguments.strict else report.lacking if arguments.here else []) else 0


if __name__ == "__main__":
    sys.exit(main())
