"""The learning-curve picture of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verl_ext.observe.runlog import series
from verl_ext.reports import in_words


def learning_curve(entries: list[dict[str, Any]], headline: str, path: Path) -> Path:
    """Draw validation, training reward, each agent's penalty and group similarity over the steps; return `path`."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    agents = sorted({n.split("/")[1] for entry in entries for n in entry["metrics"] if n.startswith("agents/")})
    figure, axes = plt.subplots(2, 2, figsize=(11, 7), constrained_layout=True)
    panels: list[tuple[Any, str, list[tuple[str, str]]]] = [
        (axes[0][0], f"Validation {in_words(headline)} (greedy)", [("", f"val/system/{headline}")]),
        (axes[0][1], "Training reward (sampled)", [("", "system/reward")]),
        (axes[1][0], "Agent-specific penalty", [(a, f"agents/{a}/penalty") for a in agents]),
        (axes[1][1], "Similarity within a group", [(a, f"agents/{a}/similarity") for a in agents]),
    ]
    for axis, title, lines in panels:
        for label, name in lines:
            steps, values = series(entries, name)
            axis.plot(steps, values, label=label, marker="o" if len(steps) < 30 else None, markersize=3)
        axis.set_title(title, fontsize=11)
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
        if any(label for label, _ in lines):
            axis.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
