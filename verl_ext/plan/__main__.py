"""How long a step would take on 8, 64 and 512 GPUs, and what would limit it; by formulas, nothing is started.

    verl_ext plan +recipe=mhgpo --prompt_tokens 1500 --output_tokens 60 --tool_seconds 0.5
    verl_ext plan +recipe=mhgpo --run runs/mhgpo --device h200 --gpus 16 128
    verl_ext plan --fit runs/fof runs/rr runs/is --points points.jsonl

The second form takes the tokens of a call from a run. The third fits the model to runs on one CPU, and prints its error
for each run when that run is left out. docs/plan.md explains the formulas and what is only assumed.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl_ext.arguments import Parser, exit_status, positive
from verl_ext.plan.options import add_load, check_load


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 2 if something is wrong or missing."""
    parser = Parser("verl_ext plan", description=__doc__)
    parser.add_argument("overrides", nargs="*", help="+recipe=NAME KEY=VALUE …, as for verl_ext train")
    parser.add_argument("--config-dir", help="a folder with recipes of one's own, as for main_ppo")
    add_load(parser)
    parser.add_argument("--device", default="h100", choices=["h100", "h200", "a100", "rtx4090", "cpu"], help="h100")
    parser.add_argument("--gpus", type=int, nargs="+", help="numbers of GPUs (8 64 512; of cores of this CPU: 1)")
    parser.add_argument("--fit", nargs="+", type=Path, help="folders of runs on one CPU, or files of points, to fit")
    parser.add_argument("--slots", type=positive, default=128, help="with --fit: their rollout.max_num_seqs (128)")
    parser.add_argument("--points", type=Path, help="with --fit: write what was measured to this file")
    given = parser.parse_args(argv, argparse.Namespace(at_limits=False))
    if not given.overrides and not given.fit:
        parser.error("give +recipe=NAME (`verl_ext recipes` lists the names), or --fit FOLDER …")
    given.gpus = given.gpus or ([1] if given.device == "cpu" else [8, 64, 512])
    if min(given.gpus) < 1:
        parser.error(f"--gpus {min(given.gpus)}: give numbers of at least 1")
    check_load(parser, given)
    return exit_status(lambda: print(_fitted(given) if given.fit else _planned(given)))


def _fitted(given: Any) -> str:
    from verl_ext.plan.hardware import measured_cpu
    from verl_ext.plan.report import fit_report
    from verl_ext.plan.workload import check_one_model, read_point, read_points, write_points

    folders = [path for path in given.fit if path.is_dir()]
    for folder in folders:
        check_one_model(folder)
    device = measured_cpu() if folders else None
    points = [read_point(path, device, given.slots) for path in folders] if device else []
    points += [point for path in given.fit if path not in folders for point in read_points(path)]
    if given.points:
        write_points(given.points, points)
    return fit_report(points)


def _planned(given: Any) -> str:
    import hydra
    import verl  # noqa: F401  (loads the plugin that puts the recipes on Hydra's search path)
    from hydra.errors import HydraException

    from verl_ext.plan.hardware import DEVICES, measured_cpu
    from verl_ext.plan.jobs import jobs_of
    from verl_ext.plan.policies import policies_report
    from verl_ext.plan.report import plan_report
    from verl_ext.trainer.modes import refused_split
    from verl_ext.trainer.preflight.composing import composed

    try:
        with hydra.initialize_config_module("verl.trainer.config", version_base=None):
            config = composed("ppo_trainer", given.overrides, given.config_dir)
    except HydraException as error:
        raise ValueError(str(error)) from error
    device = DEVICES.get(given.device) or measured_cpu()
    if config.mas.get("policies"):
        facts, report = policies_report(given, config, device)
    else:
        jobs, facts = jobs_of(given, config, device)
        report = plan_report(jobs, str(config.mas.sampling.strategy), given.gpus, refused_split(config))
    folder = ["--config-dir", given.config_dir] if given.config_dir else []
    following = f"Next: verl_ext check {shlex.join([*folder, *given.overrides])}"
    return "\n".join([*facts, "", *report, "", following])


if __name__ == "__main__":
    sys.exit(main())
