"""The tables of `verl_ext plan`, and in words what limits a step and how wrong the model was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from verl_ext.plan.fit import FITTED, fit, leave_one_out
from verl_ext.plan.scale import Job, Step, colocated, separate
from verl_ext.plan.workload import Point
from verl_ext.reports import markdown

PHASES_SHOWN = ("gen", "old_log_prob", "ref", "update_actor", "update_weights", "rest")
HEAD = (
    *("sampling", "calls", "shared: s", "split: s (train + sample)"),
    *("rollout", "log-probs", "reference", "update", "weights", "rest", "tok/s", "GiB"),
)
ERRORS = ("run left out", "measured s", "predicted s", "step", "rollout", "reference", "update", "weights", "rest")
WHY = {
    "prefill": "reading prompts, bound by operations: shorter or fewer prompts, or more GPUs, help",
    "decode": "decoding, bound by the memory's bandwidth for weights, keys and values: more GPUs help",
    "chain": "the longest chain of calls decodes one token after the other: shorter outputs help, more GPUs do not",
    "calls": "processes that run the agents: raise actor_rollout_ref.rollout.agent.num_workers",
    "tools": "the longest chain waits for its tools: faster tools help, more GPUs do not",
    "forward": "log-probabilities, bound by operations: more GPUs help",
    "update": "the update, bound by operations: more GPUs help",
    "traffic": "FSDP's traffic, longer than the operations: larger micro-batches, or more questions a step, help",
    "weights": "new weights travel to the engines: faster links help, more GPUs do not",
    "sync": "engines sleep and wake at every step: more questions a step make it rarer",
    "rows": "the trainer's one process handles all rows: fewer rows help, more GPUs do not",
    "once": "the trainer's one process: more questions a step help",
}
LEGEND = (
    "shared: all GPUs sample, then all train. split: some train on the questions before, while the others sample;",
    "that is mas_separate_async. The other columns are those of shared; GiB: what a GPU needs at least.",
    "Nothing was measured on several GPUs: utilisations are assumed (docs/plan.md), all of this is extrapolated.",
)


def plan_report(jobs: Mapping[str, Job], chosen: str, numbers: Sequence[int], refused: str = "") -> list[str]:
    """Lines: a table per number of devices with a row per strategy, and what limits the chosen one.

    refused: why the trainer does not split the run.
    """
    lines = [f"No split: {refused}", ""] if refused else []
    for devices in numbers:
        found = {name: None if refused else separate(job, devices) for name, job in jobs.items()}
        ways = {name: (colocated(job, devices), found[name]) for name, job in jobs.items()}
        rows = [_row(name, jobs[name], *pair, "refused" if refused else "does not fit") for name, pair in ways.items()]
        lines += [f"{devices} × {jobs[chosen].device.name}", *markdown(HEAD, rows, words=1)]
        lines += [*_words(chosen, *ways[chosen]), ""]
    return [*lines, *LEGEND]


def fit_report(points: Sequence[Point]) -> str:
    """The error for each run that was left out of the fit, and the coefficients of all runs."""
    coefficients, others = fit(points), leave_one_out(points)
    rows, errors = list[list[str]](), list[float]()
    for point, found in zip(points, others, strict=True):
        off = {name: value / point.seconds[name] - 1 for name, value in found.items() if point.seconds[name] > 0}
        errors.append(abs(off["step"]))
        shown = (f"{off[name]:+.0%}" if name in off else "" for name in ("step", *FITTED))
        rows.append([point.name, f"{point.seconds['step']:.2f}", f"{found['step']:.2f}", *shown])
    unit = "CPU seconds" if all(point.cpu for point in points) else "seconds; CPU seconds where a run has them"
    return "\n".join(
        [
            f"{len(points)} runs, one device each, {unit}; {points[0].device.name}, {points[0].device.source}",
            "",
            *markdown(ERRORS, rows, words=1),
            "",
            f"mean error of a step: {sum(errors) / len(errors):.0%}, largest {max(errors):.0%}",
            "coefficients of all runs (decode_steps, calls, rows, sync, once: seconds; others: times the least):",
            "  " + ", ".join(f"{name} {value:.3g}" for name, value in coefficients.items()),
        ]
    )


def _words(name: str, shared: Step, split: Step | None) -> list[str]:
    """What limits a step of the strategy, and whether a split would be better."""
    if shared.problem:
        return [f"{name} does not fit ({shared.problem}): `verl_ext check` names the remedy."]
    term, share, fixed = shared.limit()
    lines = [f"{name}, largest part, {share:.0%} of the step: {WHY[term]}."]
    if shared.devices == 1:
        return lines
    lines.append(f"{name}, what more GPUs do not shorten: {fixed:.0%} of the step.")
    if split and split.seconds < shared.seconds:
        text = (
            f"{split.trainers} + {split.devices - split.trainers}, {shared.seconds / split.seconds:.2f} times as fast"
        )
        return [*lines, f"{name}, best: a split, {text}. Its largest part: {WHY[split.limit()[0]]}."]
    return [*lines, f"{name}, best: all GPUs sample, then all train."]


def _row(name: str, job: Job, shared: Step, split: Step | None, without: str) -> list[str]:
    step, ways = shared, [shared.problem or f"{shared.seconds:,.1f}", without if shared.devices > 1 else ""]
    if split:
        ways[1] = f"{split.seconds:,.1f} ({split.trainers} + {split.devices - split.trainers})"
    phases = [f"{step.phase(phase):,.1f}" for phase in PHASES_SHOWN]
    speed = f"{job.load.generated / step.seconds:,.0f}"
    return [name, f"{job.load.calls:,.0f}", *ways, *phases, speed, f"{step.memory / 2**30:.0f}"]
