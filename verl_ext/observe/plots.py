"""The learning-curve picture of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from verl_ext.observe.collaboration_plot import plain
from verl_ext.observe.decisions import deciding
from verl_ext.observe.runlog import charged, series
from verl_ext.reports import in_words

# Title, and the (label, metric) of its lines.
Panel = tuple[str, list[tuple[str, str]]]
# With more lines, the legend of a panel is beside it.
FEW = 4
# Quantities that a workflow's reward may report, e.g. the number of agents that an orchestrator has chosen.
REPORTED = {"tokens": "Tokens of a trajectory", "agents": "Agents of a trajectory"}


def panels(entries: list[dict[str, Any]], headline: str) -> list[Panel]:
    """The panels for which there is data: validation, training reward, penalty and group similarity of each agent,
    signs of collapsing decisions, and tokens and agents of a trajectory, if the workflow reports them."""
    names = {name for entry in entries for name, value in entry["metrics"].items() if value is not None}
    agents = sorted({name.split("/")[1] for name in names if name.startswith("agents/")})
    orchestrators, penalised = deciding(names), agents if charged(entries) else []
    found: list[Panel] = [
        (f"Validation {in_words(headline)} (greedy)", [("", f"val/system/{headline}")]),
        ("Training reward (sampled)", [("", "system/reward")]),
        ("Agent-specific penalty", [(agent, f"agents/{agent}/penalty") for agent in penalised]),
        ("Similarity within a group", [(agent, f"agents/{agent}/similarity") for agent in agents]),
        ("Entropy of decisions (nats)", [(agent, f"decisions/{agent}/entropy") for agent in orchestrators]),
        ("Share of the most frequent path", [(agent, f"decisions/{agent}/top_path") for agent in orchestrators]),
    ]
    for quantity, title in REPORTED.items():
        if quantity != headline:
            found.append((title, [("training", f"system/{quantity}"), ("validation", f"val/system/{quantity}")]))
    known = [(title, [line for line in lines if line[1] in names]) for title, lines in found]
    return [(title, lines) for title, lines in known if lines]


def learning_curve(entries: list[dict[str, Any]], headline: str, path: Path) -> Path:
    """Draw `panels` over the steps; return `path`."""
    from matplotlib.figure import Figure

    drawn = panels(entries, headline)
    rows = max(1, math.ceil(len(drawn) / 2))
    figure = Figure((11, 3.5 * rows), layout="constrained")
    axes = figure.subplots(rows, 2)
    for axis, (title, lines) in zip(axes.flat, drawn, strict=False):
        for label, name in lines:
            steps, values = series(entries, name)
            axis.plot(steps, values, label=plain(label, 40), marker="o" if len(steps) < 30 else None, markersize=3)
        axis.set_title(title, fontsize=11)
        axis.set_xlabel("step")
        axis.locator_params(axis="x", integer=True)
        axis.grid(alpha=0.3)
        if any(label for label, _ in lines):
            beside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if len(lines) > FEW else {}
            axis.legend(frameon=False, fontsize=9, **beside)
    for axis in axes.flat[len(drawn) :]:
        axis.axis("off")
    figure.savefig(path, dpi=120)
    return path
