"""Runs an example with DRY_RUN=1 and verifies each command that it prints, in order, as far as a CPU can."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import hydra
from hydra import initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from verl_ext import check
from verl_ext.arguments import Parser
from verl_ext.compare import __main__ as compare
from verl_ext.data_prep import corpus, qa
from verl_ext.evaluate.config import EvaluateConfig, compose, read_config
from verl_ext.recipe.cold_start import train
from verl_ext.recipe.joyagents.cold_start import sft_demonstrations
from verl_ext.recipe.joyagents.workflow import SPECIALISTS
from verl_ext.sft import adapter_of
from verl_ext.tools import retrieval_server
from verl_ext.trainer.preflight.data import listed
from verl_ext.trainer.preflight.plan import Report

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
# What a dry run must not start; what these leave behind is recorded by `Commands`.
PROGRAMS = ("python", "curl", "vllm", "ray", "mkdir", "mv", "rm", "touch", "find")


def dry_run(script: Path, *arguments: str, folder: Path, **environment: str) -> list[list[str]]:
    """The commands that a script would run. Every program that it might start fails instead."""
    poison = folder / "poison"
    poison.mkdir(exist_ok=True)
    for name in PROGRAMS:
        (poison / name).write_text(f'#!/bin/sh\necho "{name} was started: $*" >&2\nexit 99\n')
        (poison / name).chmod(0o755)
    inherited = {name: value for name, value in os.environ.items() if name not in ("MODEL", "GPUS", "RETRIEVAL")}
    settings = inherited | {"DRY_RUN": "1", "PATH": f"{poison}:{os.environ['PATH']}"} | environment
    done = subprocess.run([str(script), *arguments], env=settings, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0 and "was started" not in done.stderr, done.stderr
    return [shlex.split(line) for line in done.stdout.splitlines()]


class Commands:
    """Verifies commands one after the other, and that each finds what it reads: files made by earlier ones.

    Args:
        earlier: folders of models that another script has trained.

    Attributes:
        made: paths that exist after the commands so far.
        trainings: reports of the training commands.
        served: addresses of vLLM, with the names of their models.
        devices: the GPUs of each server that is given some.
    """

    def __init__(self, earlier: tuple[str, ...] = ()) -> None:
        self.earlier = earlier or ("-",)
        self.made: set[str] = set()
        self.trainings: list[Report] = []
        self.served: set[tuple[str, str]] = set()
        self.devices: list[set[str]] = []

    def verify(self, command: list[str]) -> None:
        """Raises AssertionError, or what the command's own parser or configuration raises."""
        if command[0] == "env":
            self.devices.append(set(command[1].removeprefix("CUDA_VISIBLE_DEVICES=").split(",")))
            assert not self.devices[-1] & set().union(*self.devices[:-1]), "two servers on one GPU"
            command = command[2:]
        if command[:2] == ["python", "-m"]:
            self._module(command[2], command[3:])
        elif command[:2] == ["python", "-c"]:
            compile(command[2], "-c", "exec")
        elif command[0] == "python":
            assert (ROOT / command[1]).is_file(), f"{command[1]} does not exist"
            self._script(command[1], command[2:])
        elif command[:2] == ["vllm", "serve"]:
            self._need_model(command[2])
            url = f"http://127.0.0.1:{command[command.index('--port') + 1]}/v1"
            self.served.add((url, command[command.index("--served-model-name") + 1]))
        elif command[0] == "curl":
            self.made.add(command[command.index("--output") + 1])
        elif command[0] == "mv":
            self._need(command[1])
            self.made = {path.replace(command[1], command[2]) for path in self.made}
        else:
            assert command[0] in ("mkdir", "rm", "touch", "find"), f"{shlex.join(command)} is not verified"

    def _need(self, path: str) -> None:
        assert path in self.made, f"nothing makes {path} before it is needed; made: {sorted(self.made)}"

    def _need_model(self, path: str) -> None:
        if path.startswith(("runs/", "data/")) and not path.startswith(self.earlier):
            self._need(re.sub("global_step_[0-9]+", "global_step_N", path))

    def _module(self, module: str, arguments: list[str]) -> None:
        if module == "verl.trainer.main_ppo":
            report = examined(tuple(arguments), 80.0)
            assert not report.problems, report
            config = report.config
            self._need_model(config.actor_rollout_ref.model.path)
            if config.mas.prepare:  # it makes its own data when it starts
                self.made |= {*listed(config.data.train_files), *listed(config.data.val_files)}
            for path in (*listed(config.data.train_files), *listed(config.data.val_files)):
                self._need(path)
            if (config.mas.tools.get("search") or {}).get("index"):
                self._need(config.mas.tools.search.index)
            self.trainings.append(report)
            self.made.add(config.trainer.default_local_dir)
        elif module == "torch.distributed.run":
            inner = arguments.index("-m") + 1
            self._module(arguments[inner], arguments[inner + 1 :])
        elif module.startswith("verl_ext.recipe.joyagents.data."):
            given = parsed(importlib.import_module(module).main, arguments)
            names = (*SPECIALISTS, "master", "single_agent", "val", "train", "test")
            self.made |= {str(given.output_dir / f"{name}.parquet") for name in names}
        elif module == "verl_ext.sft":
            config = composed_sft(tuple(arguments))
            self._need_model(config.model.path)
            for path in (*listed(config.data.train_files), *listed(config.data.val_files)):
                self._need(path)
            agent, folder = adapter_of(config), f"{config.trainer.default_local_dir}/global_step_N"
            assert agent or "hf_model" in config.checkpoint.save_contents, "no folder that RL starts from"
            self.made.add(f"{folder}/adapters/{agent}" if agent else f"{folder}/huggingface")
        elif module == "verl_ext.check":
            given = check.parse_arguments(arguments)
            report = examined(tuple(given.overrides), given.gpu_memory)
            assert not report.problems and "memory" not in " ".join(report.missing), report
        elif module == "verl_ext.evaluate":
            self._evaluate(arguments)
        elif module == "verl_ext.compare":
            for folder in parsed(compare.main, arguments).runs:
                self._need(str(folder))
        elif module == "verl_ext.tools.retrieval_server":
            given = retrieval_server.parse_arguments(arguments)
            self._need(given.index)
        elif module == "verl.model_merger":
            given = merger_arguments(arguments)
            run = Path(given.local_dir).parents[1]
            self._need(str(run.parent if run.name == "best" else run))
            self.made.add(given.target_dir)
        elif module == "verl_ext.recipe.cold_start.train":
            self.made.add(parsed(train.main, arguments).output_dir)
        elif module == "verl_ext.recipe.joyagents.cold_start.sft_demonstrations":
            folder = parsed(sft_demonstrations.main, arguments).output_dir
            self.made |= {f"{folder}/{name}.parquet" for name in (*sft_demonstrations.AGENTS, "val")}
        else:
            raise AssertionError(f"python -m {module} is not verified")

    def _evaluate(self, arguments: list[str]) -> None:
        if arguments[:2] == ["--cfg", "job"]:
            composed_evaluation(tuple(arguments[2:]))
            return
        # The folder of the results is the row's own: without it, rows of several tables are one configuration.
        config = composed_evaluation(tuple(word for word in arguments if not word.startswith("evaluate.output=")))
        section: EvaluateConfig = read_config(config)[0]
        for path in listed(config.data.val_files):
            self._need(path)
        assert (section.endpoint, section.model) in self.served
        self.made |= {word.partition("=")[2] for word in arguments if word.startswith("evaluate.output=")}

    def _script(self, path: str, arguments: list[str]) -> None:
        if path == "data_prep/corpus.py":
            given = parsed(corpus.main, arguments)
            for source in given.input:
                self._need(str(source))
            self.made.add(str(given.output_dir))
        elif path == "data_prep/qa.py":
            folder = parsed(qa.main, arguments).output_dir
            self.made |= {str(folder / name) for name in ("train.parquet", "test.parquet", "corpus.jsonl")}
        elif path in ("data_prep/tools.py", "data_prep/environments.py", "data_prep/reasoning.py"):
            given = parsed(loaded(ROOT / path).main, arguments)
            self.made |= {str(given.output_dir / name) for name in ("train.parquet", "test.parquet", "tools.jsonl")}
        else:
            given = parsed(loaded(ROOT / path).main, arguments)
            if path.endswith("passages.py"):
                self._need(str(given.input))
                self.made.add(str(given.output))
            elif path.endswith("reference.py"):
                self._need(str(given.run))
                self._need(str(given.questions))
                self.made.add(str(given.output))
            else:
                assert any(made.startswith(f"{given.folder}/") for made in self.made), "no evaluation is shown"


@cache
def examined(overrides: tuple[str, ...], gpu_memory: float) -> Report:
    """The report on a training command, in a folder without a run unless it names one."""
    return check.examine(["trainer.default_local_dir=runs/dry_run", *overrides], gpu_memory=gpu_memory)


@cache
def composed_evaluation(overrides: tuple[str, ...]):
    """The configuration of an evaluation."""
    return compose(list(overrides))


@cache
def composed_sft(overrides: tuple[str, ...]) -> DictConfig:
    """The configuration of a supervised fine-tuning."""
    GlobalHydra.instance().clear()
    with initialize_config_module("verl.trainer.config", version_base=None):
        return hydra.compose("sft_trainer_engine", overrides=list(overrides))


class Parsed(Exception):
    """Arguments that a script was given and accepts."""


def parsed(main: Callable[[], Any], arguments: list[str]) -> argparse.Namespace:
    """Arguments of a command as its `main` parses them, and nothing after that."""

    def stopping(kind: type[argparse.ArgumentParser]) -> Any:
        parse = kind.parse_args

        def stop(parser: argparse.ArgumentParser, *given: Any) -> None:
            raise Parsed(parse(parser, *given))

        return mock.patch.object(kind, "parse_args", stop)

    with stopping(argparse.ArgumentParser), stopping(Parser), mock.patch("sys.argv", ["", *arguments]):
        try:
            main()
        except Parsed as done:
            return done.args[0]
    raise AssertionError(f"{main} parses no arguments")


def merger_arguments(arguments: list[str]) -> argparse.Namespace:
    """Arguments of verl's model merger."""
    from verl.model_merger.base_model_merger import parse_args

    with mock.patch.object(sys, "argv", ["merge", *arguments]):
        return parse_args()


def loaded(path: Path) -> ModuleType:
    """A script as a module, not run."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
