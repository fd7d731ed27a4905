"""Computes results.json, report.md and the closing table from the outcomes."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import comb
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from verl_ext.evaluate.answers import READ, Outcome
from verl_ext.mas.types import Status, Task
from verl_ext.mas.workflow import Workflow
from verl_ext.reports import in_words, markdown, no_headline
from verl_ext.storage.files import write_file

RESULTS, REPORT = "results.json", "report.md"
# Columns that count an agent's outputs.
OUTPUTS = ("parsed", "truncated", "executed")
EXPLAINED = (
    "parsed: outputs that could be read. truncated: outputs that reached max_tokens. executed: outputs that were read, "
    "and a tool was called right after. score: mean reward of the calls' trajectories."
)


def best_of(values: Sequence[float], k: int) -> float:
    """Expected best of k of these values, drawn without repetition; for values 0 and 1 the unbiased pass@k.

    E[max] = Σ_i v_(i) · C(i − 1, k − 1) / C(n, k) over the values in ascending order, i from 1 (Chen et al. 2021,
    arXiv:2107.03374, Eq. 1, for any values).
    """
    ordered = sorted(values)
    return sum(value * comb(i, k - 1) for i, value in enumerate(ordered)) / comb(len(ordered), k)


def summarise(tasks: Sequence[Task], samples: int, outcomes: dict[Any, Outcome]) -> dict[str, Any]:
    """Results per data source, and their mean over the data sources.

    Args:
        tasks: the questions of this evaluation; outcomes of others are left out.
        samples: trajectories per question.
        outcomes: by (data source, index, sample).
    """
    by_source: dict[str, list[list[Outcome]]] = defaultdict(list)
    for task in tasks:
        keys = [(task.data_source, task.index, sample) for sample in range(samples)]
        by_source[task.data_source].append([outcomes[key] for key in keys if key in outcomes])
    sources = {source: _source(questions, samples) for source, questions in by_source.items()}
    return {"data": sources, "average": _average(list(sources.values()))}


def table_of(
    workflow: Workflow, tasks: Sequence[Task], samples: int, outcomes: Mapping[Any, Outcome]
) -> Mapping[str, Mapping[str, float]]:
    """The workflow's own table over all trajectories of these questions that did not fail; empty if there is none."""
    keys = [(task, (task.data_source, task.index, sample)) for task in tasks for sample in range(samples)]
    answered = [(task, outcomes[key].result) for task, key in keys if key in outcomes and outcomes[key].ok]
    return workflow.table(answered) if answered else {}


def _source(questions: list[list[Outcome]], samples: int) -> dict[str, Any]:
    every = [outcome for question in questions for outcome in question]
    failed = [outcome for outcome in every if not outcome.ok]
    calls = [call for outcome in every for call in outcome.calls]
    answered = [[outcome for outcome in question if outcome.ok] for question in questions]
    per = max(len(every), 1)
    metrics = _quantities([[outcome.metrics for outcome in question] for question in answered])
    for name in metrics if failed else ():
        metrics[name]["failed_as_0"] = _failed_as_0(questions, name)
    return {
        "questions": len(questions),
        "answered": sum(bool(question) for question in answered),
        "trajectories": len(every),
        "missing": len(questions) * samples - len(every),
        "failed": dict(Counter(outcome.status for outcome in failed)),
        "first_error": failed[0].error if failed else "",
        "metrics": metrics,
        "recall": _quantities([[outcome.recall for outcome in question] for question in questions]),
        "not_finite": dict(Counter(q for o in every for q, value in o.metrics.items() if not math.isfinite(value))),
        "per_trajectory": {
            "calls": len(calls) / per,
            "prompt_tokens": sum(call["prompt_tokens"] for call in calls) / per,
            "generated_tokens": sum(call["generated_tokens"] for call in calls) / per,
            "tool_calls": sum(outcome.tool_calls for outcome in every) / per,
            "seconds": sum(outcome.seconds for outcome in every) / per,
        },
        "tool_failures": sum(outcome.tool_failures for outcome in every),
        "agents": _agents(calls),
    }


def _quantities(questions: list[list[dict[str, float]]]) -> dict[str, dict[str, Any]]:
    """For each quantity: the mean over questions of their means over samples, its standard error, and best@k, each over
    the questions with at least k samples. Values that are not finite are left out.
    """
    values: dict[str, list[list[float]]] = defaultdict(list)
    for question in questions:
        samples = [{name: value for name, value in sample.items() if math.isfinite(value)} for sample in question]
        for name in dict.fromkeys(name for sample in samples for name in sample):
            values[name].append([sample[name] for sample in samples if name in sample])
    results = {}
    for name, per_question in values.items():
        means = [fmean(samples) for samples in per_question]
        results[name] = mean_of(means)
        most = max(len(samples) for samples in per_question)
        depths = [k for k in (1, 2, 4, 8, 16, 32, 64) if k < most] + [most] if most > 1 else []
        for k in depths:
            best = [best_of(samples, k) for samples in per_question if len(samples) >= k]
            results[name].setdefault("best", {})[k] = {"mean": fmean(best), "questions": len(best)}
    return results


def mean_of(values: Sequence[float]) -> dict[str, Any]:
    """The mean over questions, its standard error, and their number."""
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return {"mean": fmean(values), "standard_error": error, "questions": len(values)}


def _failed_as_0(questions: list[list[Outcome]], name: str) -> float:
    """The mean over questions of a quantity's mean over samples; a failed trajectory counts as 0."""
    means = []
    for question in questions:
        values = [outcome.metrics.get(name, math.nan) if outcome.ok else 0.0 for outcome in question]
        values = [value for value in values if math.isfinite(value)]
        means += [fmean(values)] if values else []
    return fmean(means)


def _agents(calls: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    by_agent: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for call in calls:
        by_agent[call["agent"]].append(call)
    return {
        agent: {
            "calls": len(made),
            "answered": sum(Status(call["status"]).trainable for call in made),
            "statuses": dict(Counter(call["status"] for call in made)),
            "parsed": sum(call["status"] in READ for call in made),
            "truncated": sum(call["truncated"] for call in made),
            "executed": sum(call["executed"] for call in made),
            "score": _mean([call["score"] for call in made if call["score"] is not None]),
            "prompt_tokens": sum(call["prompt_tokens"] for call in made),
            "generated_tokens": sum(call["generated_tokens"] for call in made),
            "seconds": fmean(call["seconds"] for call in made),
        }
        for agent, made in sorted(by_agent.items())
    }


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _average(sources: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Mean over the data sources, each with equal weight, of the quantities that all of them have."""
    results = {}
    for kind in ("metrics", "recall"):
        for name in sources[0][kind]:
            if not all(name in source[kind] for source in sources):
                continue
            errors = [source[kind][name]["standard_error"] for source in sources]
            spread = None if None in errors else math.sqrt(sum(error**2 for error in errors)) / len(sources)
            mean = fmean(source[kind][name]["mean"] for source in sources)
            results[name] = {"mean": mean, "standard_error": spread}
    return results


def write_report(folder: Path, results: dict[str, Any]) -> str:
    """Write results.json and report.md; return the text of report.md, for the terminal."""
    text = as_text(results)
    write_file(folder / RESULTS, json.dumps(results, indent=1, default=str, allow_nan=False))
    write_file(folder / REPORT, text + "\n")
    return text


def as_text(results: dict[str, Any]) -> str:
    """The tables of data sources and agents, then the failures and their reasons."""
    sources, double = without_double(results["data"])
    names = list(dict.fromkeys(name for s in sources.values() for kind in ("metrics", "recall") for name in s[kind]))
    details = [name for name in names if name in results.get("details", ())]
    names = [name for name in names if name not in details]
    head = ["data", "answered", *map(_title, names), "calls", "prompt tok", "gen tok", "seconds", "failed"]
    rows = [[source, *_cells(result, names)] for source, result in sources.items()]
    if len(sources) > 1:
        average = [_value(results["average"].get(name)) for name in names]
        rows.append(["average", "", *average, *[""] * 5])
    reported = [name for name in (*names, *details) if name != "reward"]
    wrong = no_headline(reported, results.get("headline", "reward"))
    lines = [*wrong, *([""] if wrong else []), *markdown(head, rows)]
    lines += ["", "Means ± standard error over questions; calls, tokens and seconds per trajectory."]
    lines += [f"The reward equals {_title(double)}, so it has no column."] if double else []
    if compared := results.get("against"):
        lines += ["", *difference_lines(compared["folder"], compared["data"], names)]
    lines += ["", *detail_lines(sources, details)] if details else []
    agents = [
        [source, agent, str(a["calls"]), *_outputs(a), f"{a['prompt_tokens'] / max(a['answered'], 1):.0f}"]
        + [f"{a['generated_tokens'] / max(a['answered'], 1):.1f}", f"{a['seconds']:.2f}"]
        for source, result in sources.items()
        for agent, a in result["agents"].items()
    ]
    head = ["data", "agent", "calls", *OUTPUTS, "score", "failed", "prompt tok", "gen tok", "seconds"]
    lines += ["", *markdown(head, agents), "", EXPLAINED] if agents else []
    lines += ["", *table_lines(results["table"]), ""] if results.get("table") else [""]
    return "\n".join([*lines, *best_lines(sources), *failure_lines(sources)]).rstrip()


def table_lines(table: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The workflow's own table, in JSON's types: what is no number is null, and infinities are text."""
    names = list(dict.fromkeys(name for row in table.values() for name in row))
    rows = [[title, *(_cell(row.get(name)) for name in names)] for title, row in table.items()]
    return markdown(["over all trajectories", *names], rows)


def _cell(value: Any) -> str:
    return "–" if value is None else f"{value:.3f}" if isinstance(value, int | float) else str(value)


def difference_lines(folder: str, found: Mapping[str, Mapping[str, Any]], shown: Sequence[str]) -> list[str]:
    """A table of the differences to another evaluation (against.py), of the quantities that are `shown`."""
    names = [name for name in shown if any(name in row for row in found.values())]
    rows = [
        [source, str(max(one["questions"] for one in row.values())), *(_value(row.get(name), "+") for name in names)]
        for source, row in found.items()
    ]
    return [
        *markdown(["data", "questions", *(f"Δ {in_words(name)}" for name in names)], rows),
        "",
        f"Δ: difference to {folder}, over the questions that both answered: mean ± standard error of the differences.",
    ]


def detail_lines(sources: dict[str, dict[str, Any]], details: list[str]) -> list[str]:
    """The other quantities that the workflow reports: means over questions, a row per quantity that is not always 0."""
    values = {name: [source["metrics"].get(name) for source in sources.values()] for name in details}
    zero = [_title(name) for name, row in values.items() if all(not value or value["mean"] == 0 for value in row)]
    rows = [
        [_title(name), *[f"{value['mean']:.2f}" if value else "–" for value in row]]
        for name, row in values.items()
        if _title(name) not in zero
    ]
    lines = markdown(["per question", *sources], rows) if rows else []
    return [*lines, *([f"0 everywhere: {', '.join(zero)}"] if zero else [])]


def without_double(sources: dict[str, dict[str, Any]]) -> tuple[dict[str, dict[str, Any]], str]:
    """The quantities for the tables, and the name of the one that equals the reward, or "".

    A reward is often one of the quantities, e.g. F1. If all numbers are equal, it has no column of its own.
    """
    reported = [result["metrics"] for result in sources.values() if result["metrics"]]
    others = [name for name in reported[0] if name != "reward"] if reported else []
    same = [name for name in others if all(metrics.get(name) == metrics.get("reward") for metrics in reported)]
    if not same:
        return sources, ""
    shown = {}
    for source, result in sources.items():
        shown[source] = result | {"metrics": {name: v for name, v in result["metrics"].items() if name != "reward"}}
    return shown, same[0]


def _cells(result: dict[str, Any], names: list[str]) -> list[str]:
    per = result["per_trajectory"]
    values = {**result["metrics"], **result["recall"]}
    answered = f"{result['answered']}/{result['questions']}"
    costs = [f"{per['calls']:.2f}", f"{per['prompt_tokens']:.0f}", f"{per['generated_tokens']:.1f}"]
    failed = str(sum(result["failed"].values()))
    return [answered, *[_value(values.get(name)) for name in names], *costs, f"{per['seconds']:.2f}", failed]


def _outputs(agent: dict[str, Any]) -> list[str]:
    failed = agent["statuses"].items()
    bad = [f"{count} {status}" for status, count in sorted(failed) if not Status(status).trainable]
    score = "–" if agent["score"] is None else f"{agent['score']:.3f}"
    return [*(str(agent[name]) for name in OUTPUTS), score, ", ".join(bad)]


def best_lines(sources: dict[str, dict[str, Any]]) -> list[str]:
    """Expected best of k samples, if there are several."""
    lines = []
    for source, result in sources.items():
        for name, value in result["metrics"].items():
            if "best" in value:
                depths = []
                for k, best in value["best"].items():
                    few = best["questions"] < value["questions"]
                    of_them = f" ({best['questions']} of {value['questions']} questions)" if few else ""
                    depths.append(f"best@{k} {best['mean']:.3f}{of_them}")
                lines.append(f"{source} {_title(name)}: {', '.join(depths)}")
    return lines


def failure_lines(sources: dict[str, dict[str, Any]]) -> list[str]:
    """The failures, which are not in the means, and the means if failures counted as 0."""
    lines = []
    for source, result in sources.items():
        if result["failed"]:
            reasons = ", ".join(f"{count} x {status}" for status, count in sorted(result["failed"].items()))
            zero = [f"{_title(name)} {value['failed_as_0']:.3f}" for name, value in result["metrics"].items()]
            lines.append(f"{source}: failed and not in the means: {reasons}; the first: {result['first_error']!r:.300}")
            lines += [f"{source}: if they counted as 0: {', '.join(zero)}"] if zero else []
        for name, count in result["not_finite"].items():
            lines.append(f"{source}: {count} x {_title(name)} was no finite number and is not in the means")
        if result["missing"]:
            lines.append(f"{source}: {result['missing']} trajectories have not been asked for yet")
    return lines


def _title(name: str) -> str:
    words = in_words(name)
    return words[0].upper() + words[1:]


def _value(value: Mapping[str, Any] | None, sign: str = "") -> str:
    if value is None:
        return "–"
    error, mean = value["standard_error"], f"{value['mean']:{sign}.3f}"
    return mean if error is None else f"{mean} ± {error:.3f}"
