"""How long a step would take on 8, 64 and 512 GPUs, and what would limit it; by formulas, nothing is started.

    verl_ext plan +recipe=mhgpo --prompt_tokens 1500 --output_tokens 60 --tool_seconds 0.5
    verl_ext plan +recipe=mhgpo --run runs/mhgpo --device h200 --gpus 16 128
    verl_ext plan --fit runs/fof runs/rr runs/is --points points.jsonl

The second form takes the tokens of a call from a run. The third fits the model to runs on one CPU, and prints its error
for each run when that run is left out. docs/plan.md explains the formulas and what is only assumed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_ext.arguments import Parser, exit_status

# What is heavy is imported where it is used: --help answers at once.
if TYPE_CHECKING:
    from omegaconf import DictConfig

    from verl_ext.plan.scale import Job, Step
    from verl_ext.plan.workload import Point

PHASES_SHOWN = ("gen", "old_log_prob", "ref", "update_actor", "update_weights", "rest")
HEAD = (
    *("sampling", "calls", "shared: s", "split: s (train + sample)"),
    *("rollout", "log-probs", "reference", "update", "weights", "rest", "tok/s", "GiB"),
)


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
    parser.add_argument("--device", default="h100", choices=["h100", "h200", "a100", "rtx4090"], help="default h100")
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 64, 512], help="numbers of GPUs (8 64 512)")
    parser.add_argument("--coefficient", action="append", default=[], help="NAME=VALUE, e.g. update=2 for 50%%")
    parser.add_argument("--fit", nargs="+", type=Path, help="folders of runs on one CPU, or files of points, to fit")
    parser.add_argument("--slots", type=int, default=128, help="with --fit: their rollout.max_num_seqs (128)")
    parser.add_argument("--points", type=Path, help="with --fit: write what was measured to this file")
    given = parser.parse_args(argv)
    if not given.overrides and not given.fit:
        parser.error("give +recipe=NAME (`verl_ext recipes` lists the names), or --fit FOLDER …")
    return exit_status(lambda: print(_fitted(given) if given.fit else _planned(given)))


def _fitted(given: Any) -> str:
    from verl_ext.plan.fit import FITTED, fit, leave_one_out
    from verl_ext.plan.hardware import measured_cpu
    from verl_ext.plan.workload import read_point, read_points, write_points
    from verl_ext.reports import markdown

    folders = [path for path in given.fit if path.is_dir()]
    device = measured_cpu() if folders else None
    points: list[Point] = [read_point(path, device, given.slots) for path in folders]  # type: ignore[arg-type]
    points += [point for path in given.fit if path not in folders for point in read_points(path)]
    if given.points:
        write_points(given.points, points)
    coefficients, others = fit(points), leave_one_out(points)
    rows, errors = [], list[float]()
    for point, found in zip(points, others, strict=True):
        off = [found[name] / point.seconds[name] - 1 if name in found else None for name in ("step", *FITTED)]
        errors.append(abs(off[0] or 0.0))
        measured = [f"{point.seconds['step']:.2f}", f"{found['step']:.2f}"]
        rows.append([point.name, *measured, *("" if value is None else f"{value:+.0%}" for value in off)])
    head = ["run left out", "measured s", "predicted s", "step", "rollout", "reference", "update", "weights", "rest"]
    unit = "CPU seconds" if all(point.cpu for point in points) else "seconds, of some runs CPU seconds"
    shown = ", ".join(f"{name} {value:.3g}" for name, value in coefficients.items())
    return "\n".join(
        [
            f"{len(points)} runs on one device each, {unit}; {points[0].device.name}, {points[0].device.source}",
            "",
            *markdown(head, rows, words=1),
            "",
            f"mean error of a step: {sum(errors) / len(errors):.0%}, largest {max(errors):.0%}",
            f"coefficients of all runs (1: the device's peak; decode_steps, calls, rows, sync, once: seconds): {shown}",
        ]
    )


def _planned(given: Any) -> str:
    import hydra
    from hydra.errors import HydraException

    import verl  # noqa: F401  (loads the plugin that puts the recipes on Hydra's search path)
    from verl_ext.trainer.preflight.composing import composed

    try:
        with hydra.initialize_config_module("verl.trainer.config", version_base=None):
            config = composed("ppo_trainer", given.overrides, given.config_dir)
    except HydraException as error:
        raise ValueError(str(error)) from error
    return "\n".join(_report(given, config))


def _report(given: Any, config: DictConfig) -> list[str]:
    from verl_ext.plan.hardware import DEVICES
    from verl_ext.plan.jobs import jobs_of
    from verl_ext.plan.scale import WHY, colocated, separate
    from verl_ext.reports import markdown

    device = DEVICES[given.device]
    jobs, facts = jobs_of(given, config, device)
    lines, chosen = [*facts, ""], str(config.mas.sampling.strategy)
    for gpus in given.gpus:
        ways = {name: (colocated(job, gpus), separate(job, gpus)) for name, job in jobs.items()}
        rows = [_row(name, jobs[name], *pair) for name, pair in ways.items()]
        lines += [f"{gpus} × {device.name}", *markdown(HEAD, rows, words=1)]
        step = _best(*ways[chosen])
        term, value = step.limit()
        lines += [f"{chosen}: {value / step.seconds:.0%} of the step is one thing. {WHY[term]}", ""]
    lines += [
        "shared: all GPUs sample, then all train. split: some train on the questions before, while the others sample;",
        "verl_ext has no such mode yet. Phases, tok/s and GiB (of a GPU that trains) are those of the faster way.",
        "Nothing was measured on several GPUs: utilisations are assumed (docs/plan.md), all of this is extrapolated.",
        "",
        f"Next: verl_ext check {' '.join(given.overrides)}",
    ]
    return lines


def _best(shared: Step, split: Step | None) -> Step:
    """The faster of those that fit."""
    return shared if split is None or (not shared.problem and shared.seconds <= split.seconds) else split


def _row(name: str, job: Job, shared: Step, split: Step | None) -> list[str]:
    step = _best(shared, split)
    ways = [shared.problem or f"{shared.seconds:,.1f}", "does not fit"]
    if split:
        ways[1] = f"{split.seconds:,.1f} ({split.trainers} + {split.devices - split.trainers})"
    phases = [f"{step.phase(phase):,.1f}" for phase in PHASES_SHOWN]
    speed = f"{job.load.generated / step.seconds:,.0f}"
    return [name, f"{job.load.calls:,.0f}", *ways, *phases, speed, f"{step.memory / 2**30:.0f}"]


if __name__ == "__main__":
    sys.exit(main())
