"""Everything that verl_ext adds to verl, listed once in `register()`.

`import verl` loads this module through the entry point group `verl.plugins`, in the driver and in every Ray worker, so
it imports nothing heavy. What needs verl's heavy modules is registered right after verl itself has imported them.

verl logs a plugin that fails only at DEBUG level. Here a failure is written to stderr, and the recipes are not put on
Hydra's search path: a run that wants one stops at once.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

TESTED_VERL = "0.9.1"


def register() -> None:
    """Register with verl and Hydra. Nothing here changes what verl does in runs that use none of our recipes.

    Raises:
        RuntimeError: the installed verl is not the tested one.
    """
    installed = importlib.metadata.version("verl")
    if installed != TESTED_VERL:
        raise RuntimeError(
            f"verl {installed} is installed, verl_ext was built for {TESTED_VERL}: pip install verl=={TESTED_VERL}"
        )
    from verl_ext.engine import preload
    from verl_ext.engine.platform_cpu import register_platform

    # The platform "cpu", chosen only by VERL_PLATFORM=cpu (CPU recipes set it), never auto-detected.
    register_platform()
    if recipe_asked_for():
        # The recipe chooses the platform, and its checks say what is missing: verl's guess before that is noise.
        logging.getLogger("verl.plugin.platform.platform_manager").setLevel(logging.ERROR)
        if sys.orig_argv[1:3] == ["-m", "verl.trainer.main_ppo"] and not os.environ.get("HYDRA_FULL_ERROR"):
            signal.signal(signal.SIGINT, _end_before_start)
        preload.begin()
    # FSDP2 engines of the CPU (actor, reference, critic); on CUDA one with adapters per agent, which is asked for by
    # VERL_ENGINE_VENDOR=verl_ext.
    after_import("verl.workers.engine.fsdp.transformer_impl", "verl_ext.engine.fsdp.cpu")
    after_import("verl.workers.engine.fsdp.transformer_impl", "verl_ext.engine.fsdp.cuda")
    # The rollout engine `rollout.name=hf`, on both sides: replicas (driver) and weight senders (workers).
    after_import("verl.workers.rollout", "verl_ext.engine.registration")
    # The trainers `trainer.v1.trainer_mode=mas_sync | mas_colocate_async | mas_separate_async`, and our estimators.
    after_import("verl.trainer.ppo.v1", "verl_ext.trainer.trainer")
    after_import("verl_ext.trainer.trainer", "verl_ext.trainer.separate_async")  # made of a class of the former
    # `+recipe=…`, and the resolvers `${verl_ext.path:…}` for files inside the package, `${verl_ext.policy:…}` and
    # `${verl_ext.mode:…}` for what follows from mas.policy and trainer_mode, `${verl_ext.sum:…}`; last, see above.
    _add_recipes()


def recipe_asked_for() -> bool:
    """Whether this process is a command line with `+recipe=…`."""
    return any(argument.lstrip("+").startswith("recipe=") for argument in sys.argv)


def _end_before_start(number: int, frame: FrameType | None) -> None:
    """Ctrl-C during imports and checks: no traceback. Once the run starts, `trainer.interrupt` takes over."""
    os.write(2, b"\nInterrupted before the run had started.\n")
    os._exit(128 + number)


def _add_recipes() -> None:
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin
    from omegaconf import OmegaConf

    class RecipeSearchPath(SearchPathPlugin):
        """Puts `configs/` behind verl's own configuration, and those of packaged environments behind it."""

        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            search_path.append(provider="verl_ext", path="pkg://verl_ext.configs")
            for provider, path in importlib.import_module("verl_ext.environments").search_paths():
                search_path.append(provider=provider, path=path)
            importlib.import_module("verl_ext.trainer.preflight.composing").install()
            _refuse_with_status_2()

    Plugins.instance().register(RecipeSearchPath)
    OmegaConf.register_new_resolver("verl_ext.path", package_path, replace=True)
    OmegaConf.register_new_resolver("verl_ext.policy", policy_setting, replace=True)
    OmegaConf.register_new_resolver("verl_ext.mode", mode_setting, replace=True)
    OmegaConf.register_new_resolver("verl_ext.sum", lambda *numbers: sum(numbers), replace=True)


def _refuse_with_status_2() -> None:
    """Let a configuration that Hydra refuses end as our own checks do: its message alone, and exit status 2.

    Hydra ends with 1, and with advice about stack traces. Everything else, and HYDRA_FULL_ERROR, stays as it is.
    """
    from hydra._internal import utils
    from hydra.errors import HydraException

    stock = utils.run_and_report
    if hasattr(stock, "__wrapped__"):
        return

    @functools.wraps(stock)
    def run_and_report(func: Callable[[], Any]) -> Any:
        def refused() -> Any:
            try:
                return func()
            except HydraException as error:
                if os.environ.get("HYDRA_FULL_ERROR"):
                    raise
                cause = f"\n{error.__cause__}" if error.__cause__ else ""
                print(f"\nThis run cannot start.\n{error}{cause}\n", file=sys.stderr, flush=True)
                raise SystemExit(2) from None

        return stock(refused)

    utils.run_and_report = run_and_report


def package_path(name: str) -> str:
    """Absolute path of a file or folder of the package, e.g. `recipe/mhgpo/assets/tiny_model`."""
    room, _, rest = name.partition("/")
    package = importlib.import_module(f"verl_ext.{room}")
    return str(Path(next(iter(package.__path__))) / rest)


def policy_setting(name: str, *, _root_: Any) -> Any:
    """A setting of verl's as `mas.policy` has it; `_root_` is the whole configuration."""
    return importlib.import_module("verl_ext.trainer.lora_setup").setting(name, _root_)


def mode_setting(name: str, *, _root_: Any) -> Any:
    """A setting of verl's as `trainer.v1.trainer_mode` has it; `_root_` is the whole configuration."""
    return importlib.import_module("verl_ext.trainer.modes").setting(name, _root_)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Runs `then` right after module `name` has been executed for the first time."""

    def __init__(self, name: str, then: str):
        self.name, self.then = name, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's ordinary spec, whose execution is followed by ours; None for every other module."""
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:  # somebody may only have asked whether the module exists
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_follow(module: ModuleType) -> None:
            sys.meta_path.remove(self)
            execute(module)
            run_loudly(lambda: importlib.import_module(self.then), f"{self.then} (after {self.name})")

        spec.loader.exec_module = execute_and_follow  # type: ignore[method-assign]
        return spec


def after_import(name: str, then: str) -> None:
    """Import module `then` as soon as `name` is imported (now, if it is already)."""
    if name in sys.modules:
        importlib.import_module(then)
    else:
        sys.meta_path.insert(0, _AfterImport(name, then))


def run_loudly(action: Callable[[], object], what: str) -> None:
    """Run `action`; a failure is shown on stderr before it is raised, because verl hides it.

    A command line that asks for a recipe ends there: Hydra would take `+recipe=name` for a plain key and start a stock
    run in its place.
    """
    try:
        action()
    except Exception as error:
        print(f"\nverl_ext could not be loaded: {what}: {type(error).__name__}: {error}\n", file=sys.stderr, flush=True)
        if recipe_asked_for():
            raise SystemExit(2) from error
        raise


run_loudly(register, "registration with verl")
