"""Evaluates a checkpoint or an endpoint, as a multi-agent system or a single LLM, on question files.

    verl_ext evaluate +recipe=mhgpo_tiny
    verl_ext evaluate +recipe=mhgpo_tiny evaluate.model=runs/mhgpo_tiny/global_step_40
    verl_ext evaluate +recipe=mhgpo evaluate.endpoint=http://127.0.0.1:8100/v1 \\
        data.val_files=[data/hotpotqa/test.parquet,data/musique/test.parquet] evaluate.concurrency=64

Arguments are Hydra overrides, as in training; the section `evaluate` is documented in docs/evaluate.md.
"""

from __future__ import annotations

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

from verl_ext.arguments import Parser

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from verl_ext.evaluate.answers import Key, Outcome
    from verl_ext.mas.types import Task
    from verl_ext.mas.workflow import Workflow


# A file that is needed is missing, or one stands where a folder is to be made.
NOT_THERE = (FileNotFoundError, FileExistsError)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns the exit status: 0 done, 1 stopped on the way or nothing answered, 2 cannot start, 130 interrupted.
    """
    parser = Parser("verl_ext evaluate", description=__doc__)
    parser.add_argument("overrides", nargs="*", help="Hydra overrides: +recipe=NAME key=value …")
    parser.add_argument("--config-dir", help="folder with recipes of your own")
    parser.add_argument("--cfg", choices=["job"], help="print the composed configuration and stop")
    arguments = parser.parse_args(argv)
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from verl_ext.evaluate.config import compose
    from verl_ext.tracebacks import explained

    try:
        config = compose(arguments.overrides, arguments.config_dir)
        if arguments.cfg:
            print(OmegaConf.to_yaml(config))
            return 0
        return evaluate(config, list(sys.argv[1:] if argv is None else argv))
    except (ValueError, *NOT_THERE, ModuleNotFoundError, HydraException, OmegaConfBaseException) as error:
        print(f"\nThis evaluation cannot start.\n{explained(error)}\n", file=sys.stderr, flush=True)
        return 2
    except (RuntimeError, OSError) as error:  # a full disk, for example
        print(f"\nThe evaluation stopped.\n{explained(error)}\n", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        from verl_ext.evaluate.runner import INTERRUPTED

        print(INTERRUPTED, file=sys.stderr, flush=True)
        return 130


def evaluate(config: DictConfig, command: list[str]) -> int:
    """Ask the questions that have no answer yet, then write and print the report.

    Raises:
        ValueError: the configuration, data, model, endpoint or output folder is wrong.
        RuntimeError: too many trajectories in a row failed, or a reward raised.
    """
    from verl_ext.evaluate.against import differences, read_other
    from verl_ext.evaluate.answers import Answers
    from verl_ext.evaluate.checkpoint_parts import load_heads
    from verl_ext.evaluate.keep import check_kept, write_kept
    from verl_ext.evaluate.runner import Runner, output_folder, settings_of

    section, mas, model, workflow, tasks = prepare(config)
    heads = load_heads(section, workflow)
    other = read_other(section.against, tasks) if section.against else {}
    settings, folder = settings_of(config, section, mas, model, heads), output_folder(config, section)
    if section.keep_between:
        check_kept(folder, config.data.val_files)
    start = time.monotonic()
    with closing(Answers(folder, settings)) as answers:
        wanted = answers.missing(tasks, section.samples)  # a refusal here leaves the report that is there as it is
        say_what_runs(len(tasks), section.samples, len(wanted), answers.path)
        try:
            if wanted:
                asyncio.run(Runner(config, section, mas, model, workflow, answers).run(wanted))
        finally:
            if answers.outcomes:
                about = {"command": command, "settings": settings, "seconds_of_this_command": time.monotonic() - start}
                # The folder may hold more: further questions, further samples.
                asked = answers.of(tasks, section.samples)
                if other:
                    about["against"] = {"folder": section.against, "data": differences(asked, other)}
                text = finish(folder, workflow, tasks, section.samples, answers.outcomes, about)
        answered = len(answers.missing(tasks, section.samples)) < len(tasks) * section.samples
    if answered and section.keep_between:
        text += f"\n\n{write_kept(folder, config.data.val_files, asked, section.keep_between)}"
    print(f"\n{text}\n\n{next_steps(folder)}", flush=True)
    if not answered:
        print("\nNothing was answered; the same command asks again.\n", file=sys.stderr, flush=True)
    return 0 if answered else 1


def prepare(config: DictConfig) -> tuple[Any, ...]:
    """Check everything that can be checked without loading a model; generate the recipe's data (`mas.prepare`).

    Returns:
        The sections `evaluate` and `mas`, the model for this process (None: an endpoint answers), workflow and tasks.

    Raises:
        ValueError: what is wrong, and the remedy.
    """
    from hydra.utils import call
    from omegaconf import OmegaConf

    from verl_ext.engine.preload import ADAPTS
    from verl_ext.evaluate.config import read_config
    from verl_ext.evaluate.llms import check_served, model_of, served_model
    from verl_ext.evaluate.questions import read_tasks
    from verl_ext.trainer.build import build_workflow
    from verl_ext.trainer.lora_setup import adapters_of
    from verl_ext.trainer.preflight.checks import check_judge, check_sampled, check_tools
    from verl_ext.trainer.run_callback import choose_cpu_platform

    if config.trainer.device == "cpu":
        choose_cpu_platform()
        if not OmegaConf.select(config, "mas.deterministic"):
            os.environ.setdefault(ADAPTS, "1")
    section, mas = read_config(config)
    workflow = build_workflow(mas)
    check_sampled(workflow, section.temperature == 0, "evaluate.temperature=1.0, or mas.workflow.width=1")
    check_served(section, mas, workflow)
    if mas.prepare:
        call(OmegaConf.to_container(config.mas.prepare, resolve=True))
    tasks = read_tasks(config.data.val_files, section.max_questions, workflow.needs_truth)
    model = model_of(config, section)
    if model is None:
        own = [name for name in (adapters_of(mas, workflow) or {}).values() if name]
        section = section.model_copy(update={"model": asyncio.run(served_model(config, section, own))})
    check_tools(config)
    check_judge(config)
    return section, mas, model, workflow, tasks


def say_what_runs(questions: int, samples: int, wanted: int, path: Path) -> None:
    """Print the number of questions, and how many are answered already."""
    total = questions * samples
    each = f" x {samples} samples" if samples > 1 else ""
    done = f"; {total - wanted} of {total} are answered in {path}" if wanted < total else ""
    print(f"{questions} questions{each}{done}.", flush=True)


def finish(
    folder: Path,
    workflow: Workflow,
    tasks: list[Task],
    samples: int,
    outcomes: dict[Key, Outcome],
    about: dict[str, Any],
) -> str:
    """Write the results of the answers so far; return the tables."""
    import verl_ext
    from verl_ext.evaluate.report import summarise, table_of, write_report
    from verl_ext.observe.record import as_json
    from verl_ext.rewards.judge import Spent

    about = {"verl_ext": verl_ext.__version__, "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **about}
    about |= {"details": [*workflow.details, *Spent().metrics()], "headline": workflow.headline}
    about |= {"table": table_of(workflow, tasks, samples, outcomes), "samples": samples}
    return write_report(folder, as_json(about) | summarise(tasks, samples, outcomes))


def next_steps(folder: Path) -> str:
    """The last lines for the terminal: where the results are."""
    from verl_ext.reports import docs_page, program

    quoted = shlex.quote(str(folder))
    return (
        f"  results         {folder / 'results.json'}, {folder / 'report.md'}\n"
        f"  trajectories    {folder / 'trajectories.jsonl'}   (one JSON line each; {docs_page('trajectories.md')})\n"
        f"  look at them    {program('verl_ext')} view {quoted}\n"
        f"  from scratch    rm -r {quoted}, then the same command"
    )


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.disable(logging.DEBUG)  # some libraries turn their own on
    # A checkpoint of several ranks is read by one process: its device mesh has no process groups here, nor needs any.
    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)
    sys.exit(main())
