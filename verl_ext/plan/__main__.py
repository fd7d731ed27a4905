"""How long a step would take on 8, 64 and 512 GPUs, and what would limit it; by formulas, nothing is started.

    verl_ext plan +recipe=mhgpo --prompt_tokens 1500 --output_tokens 60 --tool_seconds 0.5
    verl_ext plan +recipe=mhgpo --run runs/mhgpo --device h200 --gpus 16 128
    verl_ext plan --fit runs/fof runs/rr runs/is --points points.jsonl

The second form takes the tokens of a call from a run. The third fits the model to runs on one CPU, and prints its error
for each run when that run is left out. docs/plan.md explains the formulas and what is only assumed.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl_ext.arguments import Parser, exit_status, positive


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 2 if something is wrong or missing."""
    parser = Parser("verl_ext plan", description=__doc__)
    parser.add_argument("overrides", nargs="*", help="+recipe=NAME KEY=VALUE …, as for verl_ext train")
    parser.add_argument("--config-dir", help="a folder with recipes of one's own, as for main_ppo")
    parser.add_argument("--run", type=Path, help="folder of a run whose calls are measured: tokens, longest chain")
    parser.add_argument("--prompt_tokens", type=float, help="mean tokens of a call's prompt, in place of --run")
    parser.add_argument("--output_tokens", type=float, help="mean tokens of a call's output, in place of --run")
    parser.add_argument(
        "--longest", type=float, help="tokens of the longest chain of calls (default: all at their limits)"
    )
    parser.add_argument("--tool_seconds", type=float, default=0.0, help="seconds of a tool call (default 0)")
    parser.add_argument(
        "--tool_turns", type=int, default=1, help="tool calls, one after the other, of a trajectory (1)"
    )
    parser.add_argument("--device", default="h100", choices=["h100", "h200", "a100", "rtx4090", "cpu"], help="h100")
    parser.add_argument("--gpus", type=int, nargs="+", help="numbers of GPUs (8 64 512; of cores of this CPU: 1)")
    parser.add_argument("--coefficient", action="append", default=[], help="NAME=VALUE, e.g. update=2 for 50%%")
    parser.add_argument("--fit", nargs="+", type=Path, help="folders of runs on one CPU, or files of points, to fit")
    parser.add_argument("--slots", type=positive, default=128, help="with --fit: their rollout.max_num_seqs (128)")
    parser.add_argument("--points", type=Path, help="with --fit: write what was measured to this file")
    given = parser.parse_args(argv)
    if not given.overrides and not given.fit:
        parser.error("give +recipe=NAME (`verl_ext recipes` lists the names), or --fit FOLDER …")
    given.gpus = given.gpus or ([1] if given.device == "cpu" else [8, 64, 512])
    if min(given.gpus) < 1:
        parser.error(f"--gpus {min(given.gpus)}: give numbers of at least 1")
    if not 0 <= given.tool_seconds < math.inf or given.tool_turns < 0:
        parser.error(f"--tool_seconds {given.tool_seconds} --tool_turns {given.tool_turns}: give numbers of at least 0")
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
        report = plan_report(jobs, str(config.mas.sampling.strategy), given.gpus)
    folder = ["--config-dir", given.config_dir] if given.config_dir else []
    following = f"Next: verl_ext check {shlex.join([*folder, *given.overrides])}"
    return "\n".join([*facts, "", *report, "", following])


if __name__ == "__main__":
    sys.exit(main())
