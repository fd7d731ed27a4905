"""Hydra callback of every recipe: checks before the start, progress while it runs, a summary at its end."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import IO, Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.utils import call
from omegaconf import DictConfig, OmegaConf

from verl_ext.engine import precision, preload
from verl_ext.engine.freed_memory import HUGE_PAGES
from verl_ext.observe import error_log
from verl_ext.observe.progress import Progress
from verl_ext.observe.runlog import NAME, log_name
from verl_ext.observe.summary import finished_already, print_summary
from verl_ext.tracebacks import explained
from verl_ext.trainer import interrupt
from verl_ext.trainer.modes import SYNC, mode_of
from verl_ext.trainer.state import checkpoint, run_settings, tool_caches

LARGE = 1e8  # bytes of a model's files


class RunCallback(Callback):
    """Stands between `python -m verl.trainer.main_ppo +recipe=…` and verl's `main`.

    Hydra turns exceptions of callbacks into warnings, so a configuration error ends the process here by `SystemExit`,
    with the message alone: what, given, allowed, remedy.
    """

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self.headline = "reward"
        self.float_type: precision.Choice | None = None  # of trainer and rollout engine, where a setting is `auto`
        self.template: Popen[bytes] | None = None  # the preloaded process that Ray's workers are forked from
        self.lock: IO[str] | None = None  # of the run's folder, held as long as this process lives

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Set what depends on this machine: the job gets a copy of the configuration as it is after this method."""
        from verl_ext.trainer import lora_setup, nodes

        nodes.join(config)
        lora_setup.choose_engine(config)
        self.template = preload.start(config, openmp(config))
        self.float_type = precision.settle_run(config)  # meanwhile the template imports torch

    def on_job_start(self, config: DictConfig, **_: Any) -> None:
        """Check everything that can be checked without starting Ray; prepare data; start the progress display."""
        try:
            self.headline = self._prepare(config)
        except Exception as error:  # Hydra would turn it into a warning and go on
            text, ours = explained(error), (ValueError, FileNotFoundError, ModuleNotFoundError)
            if text == str(error) and not isinstance(error, ours) and not isinstance(root(error), ours):
                traceback.print_exc()
            print(f"\nThis run cannot start.\n{text}\n", file=sys.stderr, flush=True)
            raise SystemExit(2) from None
        from verl_ext.trainer import nodes
        from verl_ext.trainer.preflight.fitting import memory_notes
        from verl_ext.trainer.preflight.plan import notes

        folder, strategy = Path(config.trainer.default_local_dir), config.mas.sampling.strategy
        if finished_already(folder, config):
            print_summary(folder / NAME, self.headline, strategy, sys.argv[1:], again=True)
            raise SystemExit(0)
        self.progress = Progress(folder, self.headline, log_name(config))
        self.progress.start()
        kind = [f"Float type of trainer and rollout engine {self.float_type}\n"] if self.float_type else []
        print(
            "".join([*kind, *(f"Note: {note}\n" for note in notes(config) + memory_notes(config))]), end="", flush=True
        )
        silence_verl()
        nodes.keep_task_runner_here()
        interrupt.end_on_interrupt(self.progress, config.trainer, self.template)

    def on_job_end(self, config: DictConfig, job_return: Any, **_: Any) -> None:
        """Print the summary of the run, or why it ended; then let the workers end."""
        try:
            if self.progress is not None:
                self._tell_end(config, job_return)
        finally:
            if self.template is not None:
                self.template.stdin.close()

    def _tell_end(self, config: DictConfig, job_return: Any) -> None:
        self.progress.stop()
        folder = Path(config.trainer.default_local_dir)
        if isinstance(job_return._return_value, BaseException):
            _explain(job_return._return_value, config.trainer)
            return
        print_summary(folder / log_name(config), self.headline, config.mas.sampling.strategy, sys.argv[1:])
        atexit.register(_mute)

    def _prepare(self, config: DictConfig) -> str:
        from verl_ext.trainer import lora_setup
        from verl_ext.trainer.preflight import checks, machine, paths, values
        from verl_ext.trainer.preflight import data as check_data

        if config.trainer.device == "cpu":
            choose_cpu_platform()
            # Of the run's processes, unless the user's environment has them.
            for name, value in openmp(config).items():
                os.environ.setdefault(name, value)
        values.check_keys_known(config, list(HydraConfig.get().overrides.task))
        values.check_numbers(config)
        headline = checks.check_multi_agent(config)
        lora_setup.check_engine(config)
        machine.check_resources(config)
        paths.check_paths(config)
        if prepare := config.mas.get("prepare"):
            call(OmegaConf.to_container(prepare, resolve=True))
        check_data.check_data(config)
        checks.check_tools(config)
        checks.check_judge(config)
        lora_setup.check_resumed(config)
        run_settings.check_ranks(config)
        self.lock = checkpoint.lock_run(config)  # before anything is written there
        run_settings.check_same_run(config)
        for line in tool_caches.lost_results(config):
            print(f"Warning: {line}", file=sys.stderr, flush=True)
        if kept := checkpoint.prepare_start(config):
            print(f"Files of an earlier run are now in {kept}.", flush=True)
        return headline


def openmp(config: DictConfig) -> dict[str, str]:
    """Environment variables about threads and memory of a run's processes on the CPU; the user's go before them.

    A large model gets huge pages. Waiting threads of it keep their cores busy, which is faster, and there are as many
    as other programs leave cores (`IdleThreads`); the last bits of results depend on how many. Not so under
    `mas.deterministic`, where engine and trainer compute at once, and in a container with fewer cores than it sees.
    """
    folder = Path(str(OmegaConf.select(config, "actor_rollout_ref.model.path")))
    with suppress(OSError):  # later checks name a folder that cannot be read
        if folder.is_dir() and sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) < LARGE:
            return preload.OPENMP
    from verl_ext.engine.hf.hardware import bounded  # imports torch

    huge = {HUGE_PAGES: "1"}
    if OmegaConf.select(config, "mas.deterministic") or mode_of(config) != SYNC or bounded():
        return preload.OPENMP | huge
    return {"OMP_NUM_THREADS": "1", preload.ADAPTS: "1"} | huge


def choose_cpu_platform() -> None:
    """Driver and local Ray workers run on our CPU platform (remote ones get the variable by Ray's runtime_env)."""
    os.environ["VERL_PLATFORM"] = "cpu"
    from verl.plugin.platform import get_platform, set_platform

    from verl_ext.engine.platform_cpu import PlatformCPU

    if get_platform().device_name != "cpu":  # verl had detected another one before the recipe was known
        set_platform(PlatformCPU())


def _explain(error: BaseException, trainer: DictConfig) -> None:
    """Print why the run failed, with the lines of the user's code if they are the reason, and append it to error.log.

    The whole traceback goes to that file alone; under HYDRA_FULL_ERROR, and if the file cannot be written, Hydra shows
    it, too.
    """
    trace, cause = Path(trainer.default_local_dir) / error_log.NAME, root(error)
    # Our own errors have the user's lines in paragraphs of their own; those of others may be long.
    first, *others = (_why_runner_died(error) or str(cause)).split("\n\n")
    reason = "\n\n".join([first, *(others if others and others[0].startswith("Traceback") else [])])
    whole = "".join(traceback.format_exception(error))
    text, missing = f"\n{type(cause).__name__}: {reason}\n\nThe whole traceback:\n{whole}", ""
    try:
        error_log.append(trace, text)
    except OSError as full:  # a full disk, which may be why the run failed
        missing = f" (not written: {full.strerror})"
    logs = Path(tempfile.gettempdir()) / "ray" / "session_latest" / "logs"
    print(
        f"\nThe run failed.\n{type(cause).__name__}: {reason}\n\n  traceback        {trace}{missing}\n"
        f"  workers' logs    {logs} (Ray's usual place)\n"
        f"Once that is mended, the same command {checkpoint.next_start(trainer)}.\n",
        file=sys.stderr,
        flush=True,
    )
    if not (missing or os.environ.get("HYDRA_FULL_ERROR")):
        _mute()
        raise SystemExit(1)


def _why_runner_died(error: BaseException) -> str:
    """In words, if verl's task runner has died; nothing if it has raised an error."""
    from ray.exceptions import RayActorError, RayTaskError

    from verl_ext.trainer import nodes

    if isinstance(error, RayActorError) and not isinstance(error, RayTaskError):
        return nodes.lost_runner(error)
    return ""


def _mute() -> None:
    """Hide Ray's words about the workers that end with this process: they would look like a failure."""
    sys.stdout = sys.stderr = open(os.devnull, "w")


def silence_verl() -> None:
    """Hide what verl prints at every start: Ray's arguments (700 characters) and a warning that there is no critic."""
    warnings.filterwarnings("ignore", message="Disabled critic")
    for name in ("__main__", "verl.utils.config"):
        vars(sys.modules[name])["print"] = lambda *args, **kwargs: None


def root(error: BaseException) -> BaseException:
    """The first error of a chain, without Ray's or Hydra's wrapping."""
    cause = getattr(error, "cause", None) or error.__cause__
    while cause is not None and cause is not error:
        error, cause = cause, getattr(cause, "cause", None) or cause.__cause__
    return error
