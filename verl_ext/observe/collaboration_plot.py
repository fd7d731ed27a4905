"""The picture of who acts after whom: two graphs, before and after, and the share of each choice over the steps."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_ext.observe.collaboration import MOST, Folded, Shown, collaboration
from verl_ext.observe.decisions import deciding
from verl_ext.observe.graph_layout import layout, most_frequent
from verl_ext.observe.graph_plot import draw_graph, plain
from verl_ext.observe.record import Moment, by_step
from verl_ext.observe.trajectory_files import FOLDER, read_records

# Agents that a picture holds, those with the longest paths.
AGENTS = 3
# Fields of calls that are large, and that no picture needs.
LONG_TEXTS = ("prompt", "reasoning", "output", "tokens")
REST = "0.75"  # the grey of all choices that are not drawn by name
CAPTION = (
    "circles: share of its decisions; arrows: how often one came right after the other; from a dot: the first choice"
)

Entries = Sequence[Mapping[str, Any]]


def collaboration_picture(folder: Path, entries: Entries, path: Path) -> Path | None:
    """Draw what the deciding agents of a run did; None, and no file, if none decided.

    Above, the logged questions' decisions at the first and the last logged validation (where there are not two, at the
    first and the last logged training step); below, the shares of all decisions of training (else of validation).

    Args:
        folder: of the run, with its trajectory log if it has one.
        entries: of the run's own log.
    """
    agents = _agents(entries)[:AGENTS]
    if not agents:
        return None
    logged = any((folder / FOLDER).glob("*.jsonl"))
    graphs = collaboration(by_step(_decisions(folder / FOLDER))) if logged else {}
    with warnings.catch_warnings():  # letters that the font lacks become boxes
        warnings.simplefilter("ignore", UserWarning)
        _draw(agents, graphs, entries, path)
    return path


def _draw(
    agents: Sequence[str], graphs: Mapping[str, tuple[Shown, dict[Moment, Folded]]], entries: Entries, path: Path
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shares = {agent: shares_over_steps(entries, agent) for agent in agents}
    heights = [(5.6 if agent in graphs else 0.6) + (2.6 if len(shares[agent][0]) > 1 else 0) for agent in agents]
    figure = plt.figure(figsize=(12.5, sum(heights)), constrained_layout=True)
    parts = figure.subfigures(len(agents), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, agent in zip(parts, agents, strict=True):
        nodes, by_step = graphs.get(agent) or (_nodes(shares[agent][1]), {})
        part.suptitle(f"{plain(agent, 40)}: its choices, and which followed which", fontsize=13)
        part.supxlabel(CAPTION if by_step else "", fontsize=9, color="0.4")
        _draw_agent(part, nodes, by_step, shares[agent])
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _agents(entries: Entries) -> list[str]:
    """The agents that decided among the same texts in training or validation, those with the longest paths first."""
    longest: dict[str, float] = defaultdict(float)
    for entry in entries:
        metrics = {name.removeprefix("val/"): value for name, value in entry["metrics"].items()}
        for agent in deciding(metrics):
            if not any(name.startswith(f"choices/{agent}/") for name in metrics):
                continue
            longest[agent] = max(longest[agent], metrics.get(f"decisions/{agent}/length") or 0.0)
    return sorted(longest, key=lambda agent: (-longest[agent], agent))


def _decisions(log: Path) -> Iterator[dict[str, Any]]:
    """The records of a log with their decisions alone: the whole log may be larger than the free memory."""
    for record in read_records(log):
        calls = [call for call in record["calls"] if call["decision"]]
        slim = [{name: value for name, value in call.items() if name not in LONG_TEXTS} for call in calls]
        yield record | {"tools": [], "calls": slim}


def shares_over_steps(entries: Entries, agent: str) -> tuple[list[int], dict[str, list[float]]]:
    """Steps at which an agent decided in training (if never, in validation); by choice, its shares at them."""
    for prefix in (f"choices/{agent}/", f"val/choices/{agent}/"):
        found: dict[int, dict[str, float]] = {}
        for entry in entries:
            for name, value in entry["metrics"].items():
                if name.startswith(prefix) and value is not None:
                    found.setdefault(entry["step"], {})[name[len(prefix) :]] = value
        if found:
            names = sorted({name for shares in found.values() for name in shares})
            return list(found), {name: [shares.get(name, 0.0) for shares in found.values()] for name in names}
    return [], {}


def before_and_after(steps: Sequence[Moment]) -> list[Moment]:
    """The first and the last of these logged validations, else training steps; the last alone if there are not two."""
    for phase in ("val", "train"):
        own = [moment for moment in steps if moment[0] == phase]
        if len(own) > 1:
            return [own[0], own[-1]]
    return list(steps)[-1:]


def _nodes(shares: Mapping[str, Sequence[float]]) -> Shown:
    """What is drawn by name where no trajectory is logged: the most frequent choices, in this order."""
    often = sorted(shares, key=lambda name: (-sum(shares[name]), name))
    named = often if len(often) <= MOST else often[: MOST - 1]
    return Shown(tuple(named), len(often) - len(named))


def _draw_agent(
    part: Any,
    nodes: Shown,
    graphs: Mapping[Moment, Folded],
    shares: tuple[list[int], dict[str, list[float]]],
) -> None:
    """An agent's graphs and, below, its shares; what there is not is left out."""
    import matplotlib

    palette = matplotlib.colormaps["tab20"].colors
    # Strong colours first, then two of their light ones: MOST are needed.
    colours = [*(palette[2 * n] for n in range(10) if n != 7), *(palette[2 * n + 1] for n in range(MOST - 9))]
    colours = [*colours[: len(nodes.choices)], REST]
    picked = before_and_after(list(graphs))
    rows = [2.1] * bool(picked) + [1.0] * (len(shares[0]) > 1)
    grid = part.add_gridspec(max(1, len(rows)), max(1, len(picked)), height_ratios=rows or [1.0])
    most = most_frequent(graphs[moment] for moment in picked)
    for column, moment in enumerate(picked):
        axis = part.add_subplot(grid[0, column])
        drawn = layout(graphs[moment], nodes.labels, most)
        draw_graph(axis, drawn, nodes.labels, colours[: len(nodes.labels)])
        phase = "validation (greedy)" if moment[0] == "val" else "training (sampled)"
        axis.set_title(f"{phase}, step {moment[1]}: {_count(graphs[moment].paths)} logged", fontsize=11)
    if len(shares[0]) > 1:
        _draw_shares(part.add_subplot(grid[-1, :]), nodes, colours, shares)


def _count(paths: int) -> str:
    return f"{paths} path" if paths == 1 else f"{paths} paths"


def _draw_shares(
    axis: Any, nodes: Shown, colours: Sequence[Any], shares: tuple[list[int], dict[str, list[float]]]
) -> None:
    """Stacked areas, in the order of the nodes from the bottom; the legend beside them stands in the same order."""
    steps, by_name = shares
    named = [by_name.get(name, [0.0] * len(steps)) for name in nodes.choices]
    rest = [max(0.0, 1 - sum(values)) for values in zip(*named, strict=True)] if named else [1.0] * len(steps)
    labels = [plain(name) for name in nodes.choices]
    if max(rest) > 1e-6:
        named, labels = [*named, rest], [*labels, "others"]
    areas = axis.stackplot(steps, named, colors=colours[: len(named)], edgecolor="white", linewidth=0.4)
    axis.legend(areas[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
    axis.set(xlim=(steps[0], steps[-1]), ylim=(0, 1), xlabel="step")
    axis.locator_params(axis="x", integer=True)
    axis.set_title("Share of each choice among all decisions of the step", fontsize=11)
