"""The report of a comparison: tables in Markdown, the numbers as JSON, the figures."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

from verl_ext.compare.figures import draw_all
from verl_ext.compare.launcher import Run
from verl_ext.compare.measure import Estimate, Measured, costs_of, estimate, measure, table
from verl_ext.compare.study import OPERATIONS, Study
from verl_ext.reports import markdown

WORDS = {"generated_tokens": "generated tokens", "questions": "questions", OPERATIONS: "operations"}


def write_report(study: Study, runs: list[Run], folder: Path, command: str) -> Path:
    """Write report.md, results.json and the figures for the runs that are complete; returns the report's path.

    Raises:
        ValueError: no run is complete.
    """
    methods = measure(study, runs)
    if not methods:
        raise ValueError(f"no run of {study.name} is complete: there is nothing to report")
    return write_tables(study, methods, _circumstances(study, runs, command), folder)


def write_tables(study: Study, methods: dict[str, Measured], about: list[str], folder: Path) -> Path:
    """Write report.md, results.json and the figures; `about`: lines on how the numbers came about."""
    tables = {budget: table(study, methods, budget) for budget in study.budget}
    lines = [f"# {study.title}", "", *about, ""]
    for budget, rows in tables.items():
        limit = _number(budget, study.budget[budget])
        lines += [f"## At equal {WORDS[budget]} ({limit})", "", *_scores(study, rows), ""]
    lines += ["## Cost of a step", "", *_costs(methods), ""]
    if policies := _policies(methods):
        lines += ["## Policies", "", *policies, ""]
    for caption, path in draw_all(study, methods, folder).items():
        lines += [f"## {caption}", "", f"![{caption}]({path.name})", ""]
    (folder / "results.json").write_text(json.dumps(tables, indent=1, default=Estimate.as_json), encoding="utf-8")
    report = folder / "report.md"
    report.write_text("\n".join(lines), encoding="utf-8")
    return report


def _circumstances(study: Study, runs: list[Run], command: str) -> list[str]:
    done = [run.record for run in runs if run.record is not None]
    hours = sum(record["seconds"] for record in done) / 3600
    # Each has one value if all is well: times on different machines, or with other numbers of jobs, are not comparable.
    commit, machine, jobs = (
        " and ".join(sorted({str(record.get(name, "?")) for record in done})) for name in ("commit", "machine", "jobs")
    )
    return [
        f"{date.today()} · `{command}` · commit {commit} · {machine}, runs at a time: {jobs} · {len(done)} of "
        f"{len(runs)} runs complete, {hours:.1f} hours of runs · seeds {', '.join(map(str, study.seeds))}.",
        "",
        "Mean ± standard error over the seeds (sample standard deviation / √n), greedy validation on held-out",
        "questions. A run is measured at the first step at which the budget is used up: costs may exceed it.",
    ]


def _scores(study: Study, rows: list[dict[str, Any]]) -> list[str]:
    names = (score.upper() if len(score) < 3 else score.capitalize() for score in study.scores)
    heads = ["method", *names, *costs_of(study)]
    whole = [row for row in rows if len(row["seeds"]) == len(study.seeds)]  # others are not of the same worlds
    best = max((row["scores"][study.headline].mean for row in whole), default=None)
    cells = []
    for row in rows:
        scores = [str(row["scores"][name]) for name in study.scores]
        if row in whole and row["scores"][study.headline].mean == best:
            place = study.scores.index(study.headline)
            scores[place] = f"**{scores[place]}**"
        cells.append([row["label"], *scores, *(_number(*cost) for cost in row["costs"].items())])
    lines = markdown([head.replace("_", " ") for head in heads], cells, words=1)
    seeds = {row["label"]: row["seeds"] for row in rows}
    missing = {m.label: [seed for seed in study.seeds if seed not in seeds.get(m.label, ())] for m in study.methods}
    absent = [f"{label}: {', '.join(map(str, lacking))}" for label, lacking in missing.items() if lacking]
    return [*lines, "", f"Seeds not there (yet), so not in the means: {'; '.join(absent)}."] if absent else lines


def _number(cost: str, value: float) -> str:
    return f"{value:.3g}" if cost == OPERATIONS else f"{value:,.0f}"


def _costs(methods: dict[str, Measured]) -> list[str]:
    heads = ["method", "s / step", "of it rollout", "generated tokens / step", "device memory, GB", "host memory, GB"]
    heads += ["s / run"]
    cells = []
    for method in methods.values():
        if method.untrained:
            continue
        values = [method.per_step(n) for n in ("timing_s/step", "timing_s/gen", "sampling/generated_tokens")]
        values += [method.device_memory, *(method.of_processes(name) for name in ("peak_gb", "seconds"))]
        shown = [f"{estimate(one).mean:,.{digits}f}" for one, digits in zip(values, (2, 2, 0, 2, 2, 0), strict=True)]
        cells.append([method.label, *("–" if one == "nan" else one for one in shown)])
    return markdown(heads, cells, words=1)


def _policies(methods: dict[str, Measured]) -> list[str]:
    """A row for each policy of the methods that have several (`mas.policies`); medians over the steps."""
    heads = ["method", "policy", "agents", "settings of its own", "generated tokens / step", "rows / step"]
    heads += ["learning rate", "gradient norm", "entropy", "KL loss"]
    names = ("update/rows", "actor/lr", "actor/grad_norm", "actor/entropy", "actor/kl_loss")
    forms, cells = (",.0f", ",.0f", *[",.3g"] * 4), list[list[str]]()
    for method in methods.values():
        for policy, settings in method.policies.items() if len(method.policies) > 1 and not method.untrained else ():
            agents = settings.get("agents") or []
            own = ", ".join(f"{key}={value}" for key, value in settings.items() if key != "agents")
            values = [method.tokens_of(agents), *(method.per_step(f"policies/{policy}/{name}") for name in names)]
            shown = [f"{estimate(one).mean:{form}}" for one, form in zip(values, forms, strict=True)]
            cells.append([method.label, policy, ", ".join(agents), own, *("–" if s == "nan" else s for s in shown)])
    return markdown(heads, cells, words=4) if cells else []
