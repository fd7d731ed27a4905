"""The pictures of a comparison, all from the runs' own logs."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from verl_ext.compare.measure import Measured, estimate, quantities, table
from verl_ext.compare.study import Study
from verl_ext.reports import in_words

# x, mean, standard error (`Measured.curve`)
Curve = tuple[np.ndarray, np.ndarray, np.ndarray]
Methods = dict[str, Measured]
# Method -> colour and line.
Looks = dict[str, Any]
# Okabe and Ito's colours, which colour-blind readers can distinguish; further methods get dashed lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)))
# Of methods that do not train.
MARKERS = "sD^vP*X"


@matplotlib.rc_context({"text.parse_math": False})  # labels are texts: "$" begins no formula
def draw_all(study: Study, methods: Methods, folder: Path) -> dict[str, Path]:
    """Write every figure for which there is data; returns caption -> file."""
    lines = cycle({"color": colour, "linestyle": style} for style in STYLES for colour in COLOURS)
    looks = {name: next(lines) for name, method in methods.items() if not method.untrained}
    figures = {}
    scores = " and ".join(in_words(score) for score in study.plotted)
    if looks:
        figures[f"Validation {scores} against what training has used"] = _curves(study, methods, looks, folder)
    if study.frontier:
        cost, score = (in_words(name) for name in study.frontier)
        caption = f"{score[0].upper()}{score[1:]} against {cost}, after {study.budget['questions']:,} questions"
        figures[caption] = _frontier(study, methods, looks, folder)
    if any(method.per_step("timing_s/step") for method in methods.values()):
        figures["Time and memory"] = _bars(methods, looks, folder)
    captions = {
        "behaviour": "What the agents do, over training",
        "similarity": "Similarity within a group (mean pairwise F1), per agent",
        "reward": "Reward of training with the agent-specific one, per agent",
        "penalty": "Agent-specific reward, per agent",
    }
    for kind, names in quantities(methods).items():
        curves = {name: {m: method.curve(name, "generated_tokens") for m, method in methods.items()} for name in names}
        telling = {
            name: found
            for name, found in curves.items()
            if any(curve is not None and np.ptp(curve[1]) > 0 for curve in found.values())
        }
        if telling:
            figures[captions[kind]] = _panels(kind, telling, methods, looks, folder)
    return figures


def _curves(study: Study, methods: Methods, looks: Looks, folder: Path) -> Path:
    """A row of panels per score, a column per budget."""
    rows = len(study.plotted)
    figure = Figure((6 * len(study.budget), 0.8 + 4.0 * rows), layout="constrained")
    axes = figure.subplots(rows, len(study.budget), sharey="row", squeeze=False)
    for row, score in zip(axes, study.plotted, strict=True):
        for axis, over in zip(row, study.budget, strict=True):
            for name, method in methods.items():
                curve = method.curve(f"val/system/{score}", over)
                if curve is not None:
                    _line(axis, curve, method.legend, looks[name])
            axis.axvline(study.budget[over], color="0.6", linewidth=0.8, linestyle=":")
            # A run may go far beyond one of its budgets.
            axis.set_xlim(0, min(axis.get_xlim()[1], 2 * study.budget[over]))
            axis.set_xlabel(over.replace("_", " "))
            _tidy(axis)
        row[0].set_ylabel(f"validation {in_words(score)}{', mean over seeds' if len(study.seeds) > 1 else ''}")
    _legend(figure, *axes.flat)
    return _save(figure, folder / "curves.png")


def _frontier(study: Study, methods: Methods, looks: Looks, folder: Path) -> Path:
    """One point per method at equal questions: what a system costs, and what it scores; hollow if it is untrained."""
    cost, score = study.frontier
    points = {row["label"]: row["scores"] for row in table(study, methods, "questions")}
    hollow = ({"color": "0.35", "markerfacecolor": "white", "marker": marker} for marker in cycle(MARKERS))
    figure = Figure((9, 4.8), layout="constrained")
    axis = figure.subplots()
    for name, method in methods.items():
        if method.label not in points:
            continue
        x, y = points[method.label][cost], points[method.label][score]
        look = next(hollow) if method.untrained else {"color": looks[name]["color"], "marker": "o"}
        errors = dict(zip(("xerr", "yerr"), np.nan_to_num([x.error, y.error]), strict=True))
        axis.errorbar(x.mean, y.mean, **errors, label=method.legend, linestyle="none", capsize=2, linewidth=1, **look)
    axis.set_xlabel(f"{in_words(cost)} (validation, mean over seeds)")
    axis.set_ylabel(in_words(score))
    axis.margins(0.12)
    _tidy(axis)
    _legend(figure, axis)
    return _save(figure, folder / "frontier.png")


def _bars(methods: Methods, looks: Looks, folder: Path) -> Path:
    trained = {name: method for name, method in methods.items() if not method.untrained}
    panels = {
        "seconds per step (median)": lambda m: m.per_step("timing_s/step"),
        "generated tokens per step": lambda m: m.per_step("sampling/generated_tokens"),
        "device memory, GB (peak)": lambda m: m.device_memory,
        "host memory, GB (peak)": lambda m: m.of_processes("peak_gb"),
    }
    panels = {title: values for title, values in panels.items() if any(values(method) for method in trained.values())}
    figure = Figure((12, 0.5 + 0.36 * len(trained)), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    places = np.arange(len(trained))[::-1]
    for axis, (title, values) in zip(axes, panels.items(), strict=True):
        found = [estimate(values(method)) for method in trained.values()]
        errors = np.nan_to_num([one.error for one in found])
        colours = [looks[name]["color"] for name in trained]
        axis.barh(places, [one.mean for one in found], xerr=errors, color=colours, height=0.66, ecolor="0.35")
        for place, one, error in zip(places, found, errors, strict=True):
            if one.n:
                axis.text(one.mean + error, place, f" {one.mean:,.4g}", va="center", fontsize=8)
        axis.set_title(title, fontsize=10)
        axis.margins(x=0.18)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_yticks(places, [method.legend for method in trained.values()], fontsize=9)
    return _save(figure, folder / "cost.png")


def _panels(
    kind: str, curves: dict[str, dict[str, Curve | None]], methods: Methods, looks: Looks, folder: Path
) -> Path:
    """One panel per metric of `agents/<agent>/…`, one line per method."""
    columns = min(3, len(curves))
    rows = -(-len(curves) // columns)
    figure = Figure((max(8.4, 4.2 * columns), 0.8 + 3.2 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis, (name, found) in zip(axes.flat, curves.items(), strict=False):
        for method_name, curve in found.items():
            if curve is not None:
                _line(axis, curve, methods[method_name].legend, looks[method_name])
        _, agent, quantity = name.split("/", 2)
        axis.set_title(agent if kind != "behaviour" else f"{agent}: {quantity}", fontsize=10)
        axis.set_xlabel("generated tokens", fontsize=9)
        _tidy(axis)
    for axis in axes.flat[len(curves) :]:
        axis.set_visible(False)
    _legend(figure, *axes.flat[: len(curves)])
    return _save(figure, folder / f"{kind}.png")


def _line(axis: Any, curve: Curve, label: str, look: dict[str, Any]) -> None:
    x, mean, error = curve
    axis.plot(x, mean, label=label, linewidth=1.7, **look)
    axis.fill_between(x, mean - error, mean + error, color=look["color"], alpha=0.12, linewidth=0)


def _tidy(axis: Any) -> None:
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _legend(figure: Figure, *axes: Any) -> None:
    lines = {label: line for axis in axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    columns = min(len(lines), int(figure.get_figwidth() / 2.4))
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=110)
    return path
