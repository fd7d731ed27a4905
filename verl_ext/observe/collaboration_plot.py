"""The picture of who acts after whom: two graphs, before and after, and the share of each choice over the steps."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_ext.observe.collaboration import MOST, Folded, Shown, collaboration
from verl_ext.observe.decisions import deciding
from verl_ext.observe.graph_layout import HEIGHT, LINE, WIDTH, layout, most_frequent
from verl_ext.observe.record import Moment, by_step
from verl_ext.observe.trajectory_files import FOLDER, read_records

# Points per unit of the layout, where two graphs stand side by side.
SCALE = 0.7
# Agents in one picture: those with the longest paths.
AGENTS = 3
# Fields of calls that are large, and that no picture needs.
LONG_TEXTS = ("prompt", "reasoning", "output", "tokens")
REST = "0.75"  # the grey of all choices that are not drawn by name
CAPTION = (
    "circles: share of its decisions; arrows: how often one came right after the other; from a dot: the first choice"
)

Entries = Sequence[Mapping[str, Any]]
Graphs = Mapping[Moment, Folded]
# Steps; by choice, its shares at them.
Shares = tuple[list[int], dict[str, list[float]]]


def collaboration_picture(folder: Path, entries: Entries, path: Path) -> Path | None:
    """Draw the decisions of a run's agents; None, and no file, if no agent decided.

    Above: the decisions of the logged questions at the first and the last logged validation (with fewer than two
    validations: training step). Below: the share of each choice over the training steps (else the validations).

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


def _draw(agents: Sequence[str], graphs: Mapping[str, tuple[Shown, Graphs]], entries: Entries, path: Path) -> None:
    from matplotlib.figure import Figure

    shares = {agent: shares_over_steps(entries, agent) for agent in agents}
    heights = [(5.6 if agent in graphs else 0.6) + (2.6 if len(shares[agent][0]) > 1 else 0) for agent in agents]
    figure = Figure((12.5, sum(heights)), layout="constrained")
    parts = figure.subfigures(len(agents), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, agent in zip(parts, agents, strict=True):
        nodes, by_step = graphs.get(agent) or (_nodes(shares[agent][1]), {})
        part.suptitle(f"{plain(agent, 40)}: its choices, and which followed which", fontsize=13)
        part.supxlabel(CAPTION if by_step else "", fontsize=9, color="0.4")
        _draw_agent(part, nodes, by_step, shares[agent])
    figure.savefig(path, dpi=110)


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


def shares_over_steps(entries: Entries, agent: str) -> Shares:
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
    """The choices drawn by name if no trajectory is logged: the most frequent ones, in this order."""
    often = sorted(shares, key=lambda name: (-sum(shares[name]), name))
    named = often if len(often) <= MOST else often[: MOST - 1]
    return Shown(tuple(named), len(often) - len(named))


def _draw_agent(part: Any, nodes: Shown, graphs: Graphs, shares: Shares) -> None:
    """Draw an agent's graphs and, below, its shares; parts without data are left out."""
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
        paths = graphs[moment].paths
        axis.set_title(f"{phase}, step {moment[1]}: {paths} path{'s' * (paths != 1)} logged", fontsize=11)
    if len(shares[0]) > 1:
        _draw_shares(part.add_subplot(grid[-1, :]), nodes, colours, shares)


def _draw_shares(axis: Any, nodes: Shown, colours: Sequence[Any], shares: Shares) -> None:
    """Stacked areas in the order of the nodes, from the bottom; the legend has the same order."""
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


def plain(text: str, longest: int = 18) -> str:
    """A name as matplotlib can draw it: one line, no formulas, no invisible characters, not too long."""
    seen = "".join(letter if letter.isprintable() else " " for letter in text)
    cut = seen if len(seen) <= longest else seen[: longest - 1] + "…"
    return cut.replace("\\", "\N{FULLWIDTH REVERSE SOLIDUS}").replace("$", r"\$")


def draw_graph(axis: Any, layout: Mapping[str, Any], labels: Sequence[str], colours: Sequence[Any]) -> None:
    """Draw a layout; labels and colours by node."""
    from matplotlib.patches import Circle, PathPatch, Polygon
    from matplotlib.path import Path as Line

    codes = {2: [Line.LINETO], 3: [Line.CURVE3] * 2, 4: [Line.CURVE4] * 3}  # by the number of points
    for way in layout["ways"]:
        points, colour = way["line"], "0.35" if way["from"] is not None else "black"
        looks = {"alpha": way["opacity"], "zorder": 1 + way["width"] / 10}
        line, width = Line(points, [Line.MOVETO, *codes[len(points)]]), SCALE * way["width"]
        axis.add_patch(PathPatch(line, fill=False, edgecolor=colour, linewidth=width, capstyle="butt", **looks))
        axis.add_patch(Polygon(way["head"], facecolor=colour, edgecolor="none", **looks))
        if way["from"] is None:
            axis.add_patch(Circle(points[0], 2.5 + way["width"] / 2, color=colour, **looks))
    for node, label, colour in zip(layout["nodes"], labels, colours, strict=True):
        looks = {"facecolor": colour, "edgecolor": "white"} if node["share"] else {"facecolor": "white"}
        looks = {"edgecolor": "0.8", "linewidth": 1.2, "zorder": 3} | looks
        axis.add_patch(Circle((node["x"], node["y"]), node["radius"], **looks))
        _label(axis, node, label)
    axis.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0), aspect="equal")
    axis.axis("off")


def _label(axis: Any, node: Mapping[str, Any], label: str) -> None:
    """The name, as much of it as there is room for, and the share below."""
    from matplotlib.patheffects import withStroke

    x, y, anchor, room = node["label"]
    looks = {"ha": {"start": "left", "middle": "center", "end": "right"}[anchor], "va": "baseline", "zorder": 4}
    looks |= {"color": "black" if node["share"] else "0.6", "path_effects": [withStroke(linewidth=2.5, foreground="w")]}
    name = axis.text(x, y, "", fontsize=13 * SCALE, **looks)
    axis.text(x, y + LINE, f"{node['share']:.0%}", fontsize=12 * SCALE, **looks)
    for longest in range(24, 0, -1):
        name.set_text(plain(label, longest))
        if name.get_window_extent().width <= room * SCALE / 72 * axis.figure.dpi:
            break
