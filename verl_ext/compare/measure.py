"""Computes the numbers of a comparison from the runs' logs: scores at equal budgets, costs, curves."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np

from verl_ext.compare.launcher import Run
from verl_ext.compare.study import BUDGETS, OPERATIONS, Study
from verl_ext.observe.metrics import METRICS
from verl_ext.observe.runlog import NAME, VALIDATION, read_log
from verl_ext.settings import unknown_name

# Costs in the tables: name -> what it is.
COSTS = {
    "generated_tokens": "tokens generated for training",
    "questions": "questions seen in training",
    "agent_calls": "agent calls made for training",
    "steps": "training steps",
    OPERATIONS: "operations of the agent calls made for training, in a study with such a budget",
}
# Of a run, its configuration: dotted names and values.
SETTINGS = "settings.json"
# Of the actor's worker and the critic's.
MEMORY = "/perf/max_memory_allocated_gb"


@dataclass(frozen=True)
class Estimate:
    """Mean over the seeds and its standard error (sample standard deviation / √n); NaN with fewer than two."""

    mean: float
    error: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if math.isnan(self.error) else f"{self.mean:.3f} ± {self.error:.3f}"

    def as_json(self) -> dict[str, float | None]:
        """As results.json has it."""
        return {"mean": self.mean, "standard_error": None if math.isnan(self.error) else self.error}


def estimate(values: Sequence[float]) -> Estimate:
    """NaN where there is no value, e.g. of a metric that no run recorded."""
    if not values:
        return Estimate(math.nan, math.nan, 0)
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Estimate(fmean(values), error, len(values))


@dataclass
class Measured:
    """One method: its logs by seed, and what the runs cost as processes (`run.json`)."""

    label: str
    legend: str  # the label, and how many seeds there are where some are missing
    logs: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    records: dict[int, dict[str, Any]] = field(default_factory=dict)
    untrained: bool = False
    policies: dict[str, dict[str, Any]] = field(default_factory=dict)  # `mas.policies` of its first run

    def at(self, budget: str, limit: int) -> dict[int, dict[str, float]]:
        """By seed, the metrics of the first validated step at which `limit` of `budget` was used up.

        Their `budget/*` are the run's sums up to there, `calls` and `steps` likewise. For an untrained system, the
        validation before the first step.
        """
        found = {}
        for seed, log in self.logs.items():
            if self.untrained:
                found[seed] = _with_sums(log[:1])
                continue
            for number, entry in enumerate(log):
                validated = any(name.startswith("val/system/") for name in entry["metrics"])
                if validated and used(entry, budget) >= limit:
                    found[seed] = _with_sums(log[: number + 1])
                    break
        return found

    def per_step(self, name: str) -> list[float]:
        """Medians over the steps of each run; those without the metric are left out."""
        values = [[m[name] for e in log[1:] if (m := e["metrics"]).get(name) is not None] for log in self.logs.values()]
        return [] if self.untrained else [median(one) for one in values if one]

    def of_processes(self, name: str) -> list[float]:
        """What `run.json` says of each run; runs that `verl_ext compare` did not start have less."""
        return [record[name] for record in self.records.values() if name in record]

    def tokens_of(self, agents: Sequence[str]) -> list[float]:
        """Tokens that these agents generate in a step: medians over the steps of each run."""
        pairs = [(f"agents/{name}/calls", f"agents/{name}/output_tokens") for name in agents]
        steps = [
            [e["metrics"] for e in log[1:] if "sampling/agent_calls" in e["metrics"]] for log in self.logs.values()
        ]
        sums = [[sum((m.get(n) or 0) * (m.get(t) or 0) for n, t in pairs) for m in one] for one in steps]
        return [median(one) for one in sums if one]

    @property
    def device_memory(self) -> list[float]:
        """Peak of each run, in GB: what PyTorch allocated at once on a device of the workers (verl's metric).

        On the CPU it is the resident memory of such a process.
        """
        steps = [
            [value for e in log for key, value in e["metrics"].items() if key.endswith(MEMORY)]
            for log in self.logs.values()
        ]
        return [] if self.untrained else [max(known) for one in steps if (known := [v for v in one if v is not None])]

    def curve(self, metric: str, over: str, points: int = 200) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """(x, mean, standard error) of a metric over `budget/<over>`, on a grid up to where the shortest run ends.

        Between the steps at which a run recorded it, it is interpolated linearly.
        """
        kept = [[e for e in log if e["metrics"].get(metric) is not None] for log in self.logs.values()]
        series = [([used(e, over) for e in one], [e["metrics"][metric] for e in one]) for one in kept if len(one) > 1]
        if not series or self.untrained:
            return None
        grid = np.linspace(max(xs[0] for xs, _ in series), min(xs[-1] for xs, _ in series), points)
        values = np.array([np.interp(grid, xs, ys) for xs, ys in series])
        error = values.std(0, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else np.zeros(points)
        return grid, values.mean(0), error


def measure(study: Study, runs: list[Run]) -> dict[str, Measured]:
    """All methods of a study that have at least one complete run, in its order.

    Raises:
        ValueError: the run of an untrained system's `start_of` was not validated before its first step.
    """
    done = {(run.method.name, run.seed): run for run in runs if run.record is not None}
    found = {}
    for method in study.methods:
        source = study.method(method.start_of or method.name)
        mine = {seed: done[source.name, seed] for seed in study.seeds if (source.name, seed) in done}
        if mine:
            logs = {seed: read_log(run.folder / (NAME if source.trains else VALIDATION)) for seed, run in mine.items()}
            for seed in (seed for seed, log in logs.items() if method.start_of and not (log and log[0]["step"] == 0)):
                raise ValueError(
                    f"{mine[seed].name} has no validation before its first step, which {method.name} is to be. Remedy: "
                    "trainer.val_before_train=true, and the run again"
                )
            few = f" ({len(mine)} of {len(study.seeds)} seeds)" if len(mine) < len(study.seeds) else ""
            found[method.name] = Measured(
                method.label,
                method.label + few,
                logs,
                {seed: run.record or {} for seed, run in mine.items()},
                untrained=not method.trains,
                policies=policies_of(mine[min(mine)].folder),
            )
    return found


def settings_of(folder: Path) -> dict[str, Any]:
    """The settings that a run has left, by dotted keys; empty if it has left none."""
    file = folder / SETTINGS
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def policies_of(folder: Path) -> dict[str, dict[str, Any]]:
    """`mas.policies` by name, from the settings that a run has left: dotted keys. None in a run without them."""
    found = dict[str, dict[str, Any]]()
    for key, value in settings_of(folder).items():
        if key.startswith("mas.policies.") and key.count(".") > 2:
            name, setting = key.removeprefix("mas.policies.").split(".", 1)
            found.setdefault(name, {})[setting] = value
    return found


def costs_of(study: Study) -> list[str]:
    """The names of `COSTS` that the tables of a study have."""
    return [name for name in COSTS if name != OPERATIONS or name in study.budget]


def table(study: Study, methods: dict[str, Measured], budget: str) -> list[dict[str, Any]]:
    """One row per method that reached the budget.

    Each has the method's label, the seeds, `scores` (Estimate by score) and `costs` (mean by name of `COSTS`).

    Raises:
        ValueError: a run did not record one of the study's scores.
    """
    rows = []
    for method in methods.values():
        found = method.at(budget, study.budget[budget])
        if found:
            scores = {name: estimate([_score(m, name) for m in found.values()]) for name in study.scores}
            costs = {name: fmean(m[name] for m in found.values()) for name in costs_of(study)}
            rows.append({"label": method.label, "seeds": list(found), "scores": scores, "costs": costs})
    return rows


def quantities(methods: dict[str, Measured]) -> dict[str, list[str]]:
    """What agents report, by kind: `similarity`, `reward`, `penalty`, and `behaviour` (what their penalties count)."""
    standard = {name.rsplit("/", 1)[1] for name in METRICS if name.startswith("agents/")}
    entries = (entry for method in methods.values() for log in method.logs.values() for entry in log)
    names = {name for entry in entries for name in entry["metrics"] if name.startswith("agents/")}
    kinds: dict[str, list[str]] = {"behaviour": [], "similarity": [], "reward": [], "penalty": []}
    for name in sorted(names):
        last = name.rsplit("/", 1)[1]
        if last in kinds:
            kinds[last].append(name)
        elif last not in standard:
            kinds["behaviour"].append(name)
    return kinds


def _score(metrics: dict[str, float], name: str) -> float:
    if metrics.get(f"val/system/{name}") is None:
        known = sorted(key.removeprefix("val/system/") for key in metrics if key.startswith("val/system/"))
        raise ValueError(f"the runs did not record a score of the study: {unknown_name('scores', name, known)}")
    return metrics[f"val/system/{name}"]


def used(entry: dict[str, Any], budget: str) -> float:
    """What a run has used up of a budget by the step of this entry."""
    return entry["metrics"].get(f"budget/{budget}") or 0


def _with_sums(log: list[dict[str, Any]]) -> dict[str, float]:
    calls = sum(entry["metrics"].get("sampling/agent_calls") or 0 for entry in log)
    spent = {name: used(log[-1], name) for name in (*BUDGETS, OPERATIONS)}
    return log[-1]["metrics"] | spent | {"agent_calls": calls, "steps": log[-1]["step"]}
