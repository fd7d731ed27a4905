"""Compares methods: runs what is missing of a study, then writes its report.

    verl_ext compare search arithmetic            # what `make compare` runs
    verl_ext compare search arithmetic --quick    # what `make compare-quick` runs
    verl_ext compare my_study.yaml --jobs 1       # your own study; configs/compare has examples
    verl_ext compare --runs runs/table1/M/mappo runs/table1/M/mhgpo_rr    # finished runs: overlays them, runs nothing

A run that is complete is not run again (docs/compare.md).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from verl_ext.arguments import Parser, positive

if TYPE_CHECKING:
    from verl_ext.compare.launcher import Run


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 all runs complete, 1 some failed or could not be reported, 2 wrong arguments, 130 interrupted."""
    parser = Parser("verl_ext compare", description=__doc__)
    parser.add_argument("studies", nargs="*", help="names of configs/compare, or YAML files")
    parser.add_argument("--runs", nargs="+", type=Path, help="folders of finished runs, in place of studies")
    parser.add_argument("--score", help="with --runs: the quantity of validation that matters; default f1, if there")
    parser.add_argument("--first_steps", type=positive, help="with --runs: only the first steps of each; default all")
    parser.add_argument("--output", type=Path, default=Path("runs/compare"), help="folder of the runs and reports")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time; each takes about a core and 4 GB")
    parser.add_argument("--quick", action="store_true", help="the studies' small form")
    parser.add_argument("--report", action="store_true", help="only write the reports of what is complete")
    parser.add_argument("--cfg", choices=["job"], help="print the composed configuration of each run and stop")
    args = parser.parse_args(arguments)
    from verl_ext.compare.launcher import plan, run_all
    from verl_ext.compare.report import write_report
    from verl_ext.compare.study import read_study

    if args.jobs < 1:
        parser.error(f"--jobs {args.jobs}: at least one run at a time")
    if bool(args.studies) == bool(args.runs):
        parser.error("give studies, or --runs with folders of finished runs")
    of_studies = {"--quick": args.quick, "--report": args.report, "--cfg": args.cfg}
    of_runs = {"--score": args.score, "--first_steps": args.first_steps}
    for option in (name for name, value in (of_studies if args.runs else of_runs).items() if value):
        parser.error(f"{option} is about {'studies' if args.runs else '--runs'}")
    command = " ".join(["verl_ext compare", *(arguments if arguments is not None else sys.argv[1:])])
    if args.runs:
        return _overlay(args.runs, args.output / "runs", command, args.score, args.first_steps)
    try:
        studies = [read_study(name, args.quick) for name in args.studies]
    except ValueError as error:
        parser.error(str(error))
    if len({study.name for study in studies}) < len(studies):
        parser.error(f"two studies of one name would share a folder: {' '.join(args.studies)}")
    output = args.output.resolve()
    plans = {study.name: plan(study, output) for study in studies}
    if args.cfg:
        return print_configurations([run for runs in plans.values() for run in runs])
    failed = []
    if not args.report:
        try:
            failed = run_all([run for runs in plans.values() for run in runs], output, args.jobs)
        except KeyboardInterrupt:
            print("\nInterrupted. The same command goes on with the runs that are missing.", flush=True)
            return 130
        except OSError as error:  # another comparison runs there, the disk is full, …
            print(error, file=sys.stderr)
            return 1
    unreported = 0
    for study in studies:
        try:
            report = write_report(study, plans[study.name], output / study.name, command)
        except ValueError as error:
            print(f"{study.name}: {error}", file=sys.stderr)
            unreported += 1
            continue
        _print_tables(report)
        print(_next_step(plans[study.name]), end="")
    if failed:
        print(f"\n{len(failed)} run(s) failed: {', '.join(run.name for run in failed)}. The same command tries again.")
    return 1 if failed or unreported else 0


def _print_tables(report: Path) -> None:
    """Print the sections of a report that have a table, with their titles."""
    sections = report.read_text(encoding="utf-8").split("\n## ")[1:]
    print("\n".join([f"\n{report}", *(f"\n{section.strip()}" for section in sections if "\n|" in section)]))


def _next_step(runs: list[Run]) -> str:
    """How to look at a training, or go on from it; empty if none is complete."""
    from verl_ext.reports import program

    run = next((run for run in runs if run.method.trains and run.record), None)
    if run is None:
        return ""
    folder = os.path.relpath(run.folder)
    view = f"{program('verl_ext')} view {folder} --open"
    return (
        f"\nNext:\n  what agents said   {view}   ({run.name}; the others are beside it)\n"
        f"  evaluate, go on    the commands are at the end of {folder}/output.txt\n"
    )


def _overlay(folders: list[Path], output: Path, command: str, score: str | None, steps: int | None) -> int:
    from verl_ext.compare.overlay import overlay

    try:
        _print_tables(overlay(folders, output.resolve(), command, score, steps))
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def print_configurations(runs: list[Run]) -> int:
    """Print the configuration that each run is started with, as YAML documents; returns the exit status."""
    import hydra
    import verl  # noqa: F401  (loads the plugin that puts the recipes on Hydra's search path)
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    from verl_ext.trainer.preflight.composing import composed

    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        for run in runs:
            try:
                config = composed("ppo_trainer", [*run.command, f"trainer.default_local_dir={run.folder}"])
            except (ValueError, HydraException) as error:
                print(f"{run.name} cannot be composed.\n{error}", file=sys.stderr)
                return 2
            print(f"--- # {run.name}\n{OmegaConf.to_yaml(config)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
