"""Evaluates a checkpoint or an endpoint, as a multi-agent system or a single LLM, on question files.

    python -m verl_ext.evaluate +recipe=mhgpo_tiny
    python -m verl_ext.evaluate +recipe=mhgpo_tiny evaluate.model=runs/mhgpo_tiny/global_step_40
    python -m verl_ext.evaluate +recipe=mhgpo evaluate.endpoint=http://127.0.0.1:8100/v1 \\
        data.val_files=[data/hotpotqa/test.parquet,data/musique/test.parquet] evaluate.concurrency=64

Arguments are Hydra overrides, as in training; the section `evaluate` is documented in docs/evaluate.md.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns the exit status: 0 done, 1 stopped on the way or nothing answered, 2 cannot start, 130 interrupted.
    """
    parser = argparse.ArgumentParser(
        "python -m verl_ext.evaluate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", help="Hydra overrides: +recipe=NAME key=value …")
    parser.add_argument("--config-dir", help="folder with recipes of your own")
    parser.add_argument("--cfg", choices=["job"], help="print the composed configuration and stop")
    arguments = parser.parse_intermixed_args(argv)
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from verl_ext.evaluate.config import compose

    try:
        config = compose(arguments.overrides, arguments.config_dir)
        if arguments.cfg:
            print(OmegaConf.to_yaml(config))
            return 0
        return evaluate(config, list(sys.argv[1:] if argv is None else argv))
    except (ValueError, FileNotFoundError, ModuleNotFoundError, HydraException, OmegaConfBaseException) as error:
        print(f"\nThis evaluation cannot start.\n{error}\n", file=sys.stderr, flush=True)
        return 2
    except RuntimeError as error:
        print(f"\nThe evaluation stopped.\n{error}\n", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. The same command goes on from here.\n", file=sys.stderr, flush=True)
        return 130


def evaluate(config: DictConfig, command: list[str]) -> int:
    """Ask what has not been asked yet, report, print.

    Raises:
        ValueError: the configuration, data, model, endpoint or output folder is not as it must be.
        RuntimeError: nothing was answered any more, or a reward raised.
    """
    from verl_ext.evaluate.heads import load_heads
    from verl_ext.evaluate.records import Records
    from verl_ext.evaluate.report import table_of
    from verl_ext.evaluate.runner import Runner, output_folder, settings_of

    section, mas, model, workflow, tasks = prepare(config)
    heads = load_heads(section, workflow)
    settings, folder = settings_of(config, section, mas, model, heads), output_folder(config, section)
    start = time.monotonic()
    with closing(Records(folder, settings)) as records:
        wanted = records.missing(tasks, section.samples)  # a refusal here leaves the report that is there as it is
        say_what_runs(len(tasks), section.samples, len(wanted), records.path)
        try:
            if wanted:
                asyncio.run(Runner(config, section, mas, model, workflow, records).run(wanted))
        finally:
            if records.outcomes:
                about = {"command": command, "settings": settings, "seconds_of_this_command": time.monotonic() - start}
                about |= {"details": list(workflow.details), "headline": workflow.headline}
                about["table"] = table_of(workflow, tasks, section.samples, records.outcomes)
                text = finish(folder, tasks, section.samples, records.outcomes, about)
        answered = len(records.missing(tasks, section.samples)) < len(tasks) * section.samples
    print(f"\n{text}\n\n{next_steps(folder)}", flush=True)
    if not answered:
        print("\nNothing was answered; the same command asks again.\n", file=sys.stderr, flush=True)
    return 0 if answered else 1


def prepare(config: DictConfig) -> tuple[Any, ...]:
    """Check everything that can be checked without loading a model; make what the recipe generates.

    Returns:
        The sections `evaluate` and `mas`, the model for this process (None: an endpoint answers), workflow and tasks.

    Raises:
        ValueError: what is wrong, and the remedy.
    """
    from hydra.utils import call
    from omegaconf import OmegaConf

    from verl_ext.evaluate.config import read_config
    from verl_ext.evaluate.llms import model_of, served_model
    from verl_ext.evaluate.questions import read_tasks
    from verl_ext.trainer.preflight.checks import check_tools
    from verl_ext.trainer.run_callback import choose_cpu_platform
    from verl_ext.trainer.workflow import build_workflow

    if config.trainer.device == "cpu":
        choose_cpu_platform()
    section, mas = read_config(config)
    workflow = build_workflow(mas)
    if mas.prepare:
        call(OmegaConf.to_container(config.mas.prepare, resolve=True))
    tasks = read_tasks(config.data.val_files, section.max_questions)
    model = model_of(config, section)
    if model is None:
        section = section.model_copy(update={"model": asyncio.run(served_model(config, section))})
    check_tools(config)
    return section, mas, model, workflow, tasks


def say_what_runs(questions: int, samples: int, wanted: int, path: Path) -> None:
    """Print how much there is to do, and how much of it is done."""
    total = questions * samples
    each = f" x {samples} samples" if samples > 1 else ""
    done = f"; {total - wanted} of {total} are answered in {path}" if wanted < total else ""
    print(f"{questions} questions{each}{done}.", flush=True)


def finish(folder: Path, tasks: list, samples: int, outcomes: dict, about: dict) -> str:
    """Write the results of what has been answered; return the tables."""
    import verl_ext
    from verl_ext.evaluate.report import summarise, write_report
    from verl_ext.observe.record import as_json

    stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    about = {"verl_ext": verl_ext.__version__, "date": stamp, **about, "samples": samples}
    return write_report(folder, as_json(about) | summarise(tasks, samples, outcomes))


def next_steps(folder: Path) -> str:
    """Where everything is."""
    return "\n".join(
        [
            f"  results         {folder / 'results.json'}, {folder / 'report.md'}",
            f"  trajectories    {folder / 'trajectories.jsonl'}   (one JSON line each; docs/trajectories.md)",
            f"  look at them    python -m verl_ext.observe.viewer {shlex.quote(str(folder))}",
            f"  again           rm -r {shlex.quote(str(folder))}, then the same command",
        ]
    )


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.disable(logging.DEBUG)  # some libraries turn their own on
    sys.exit(main())
