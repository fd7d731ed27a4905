"""Draws a graph of decisions in matplotlib, with the choices on a ring, as the viewer's page does (page/graph.js)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from verl_ext.observe.collaboration import Folded

# From a node's direction outwards to that of its loop, and the other way to that of its start.
TURN = math.pi / 3.3
# Inches that a label may be wide.
ROOM = 1.15
Point = tuple[float, float]


def plain(text: str, longest: int = 18) -> str:
    """A name as matplotlib can draw it: one line, no formulas, no invisible characters, not too long."""
    seen = "".join(letter if letter.isprintable() else " " for letter in text)
    cut = seen if len(seen) <= longest else seen[: longest - 1] + "…"
    return cut.replace("\\", "\N{FULLWIDTH REVERSE SOLIDUS}").replace("$", r"\$")


def draw_graph(axis: Any, graph: Folded, labels: Sequence[str], colours: Sequence[Any], most: float) -> None:
    """Draw a graph. A node's size is its share, an edge's width its frequency; an arrow from a dot is a start.

    Args:
        labels, colours: by node.
        most: how often per path the edge was taken that is drawn widest.
    """
    from matplotlib.patches import Circle

    ring = [math.pi / 2 - 2 * math.pi * n / len(labels) for n in range(len(labels))]
    size = 1.0 if len(labels) > 1 else 0.0
    nodes = []
    for out, share, colour in zip(ring, graph.shares, colours, strict=True):
        place = (size * math.cos(out), size * math.sin(out))
        looks = {"facecolor": colour, "edgecolor": "white"} if share else {"facecolor": "white", "edgecolor": "0.8"}
        radius = 0.045 + 0.15 * math.sqrt(share) if share else 0.025
        nodes.append(axis.add_patch(Circle(place, radius, zorder=3, linewidth=1.2, **looks)))
    for (a, b), times in sorted(graph.edges.items(), key=lambda edge: edge[1]):
        wide = times / graph.paths / most
        if a == b:
            _loop(axis, nodes[a], ring[a], wide)
        else:
            _edge(axis, nodes[a], nodes[b], (ring[b] - ring[a]) % (2 * math.pi), wide)
    for node, out, times in zip(nodes, ring, graph.first, strict=True):
        if times:
            _start(axis, node, out, times / graph.paths)
    for node, out, label, share in zip(nodes, ring, labels, graph.shares, strict=True):
        n = nodes.index(node)
        _label(axis, node, out, label, share, beside=graph.first[n] > 0 or (n, n) in graph.edges)
    axis.set(xlim=(-1.9, 1.9), ylim=(-1.5, 1.5), aspect="equal")
    axis.axis("off")


def _looks(wide: float, colour: str = "0.35", least: float = 0.25) -> dict[str, Any]:
    """Width, head and opacity of an arrow of relative width `wide` in [0, 1]; rare arrows do not hide the others."""
    width = 0.7 + 5 * wide
    head = f"-|>,head_length={3 + 0.5 * width},head_width={1.4 + 0.25 * width}"  # its outline is as wide as the line
    return {"linewidth": width, "arrowstyle": head, "color": colour, "alpha": least + (0.85 - least) * wide,
            "capstyle": "butt", "joinstyle": "miter"}  # fmt: skip


def _toward(point: Point, angle: float, distance: float) -> Point:
    return point[0] + distance * math.cos(angle), point[1] + distance * math.sin(angle)


def _edge(axis: Any, a: Any, b: Any, turn: float, wide: float) -> None:
    """Draw an edge bent inwards, where no node is; anticlockwise more, so that both directions can be seen."""
    from matplotlib.patches import FancyArrowPatch

    clockwise = turn > math.pi - 1e-6
    bend = 0.14 if clockwise else -0.14 - 0.24 / math.dist(a.center, b.center)
    axis.add_patch(
        FancyArrowPatch(
            a.center, b.center, patchA=a, patchB=b, shrinkA=0, shrinkB=1.5, connectionstyle=f"arc3,rad={bend}",
            zorder=1 + wide, **_looks(wide),
        )
    )  # fmt: skip


def _loop(axis: Any, node: Any, out: float, wide: float) -> None:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    middle, opening, far = out - TURN, 0.42, node.radius + 0.21
    points = [_toward(node.center, middle + side * opening, r) for side, r in
              ((1, node.radius), (1, far), (-1.2, far), (-1, node.radius + 0.012))]  # fmt: skip
    curve = Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
    axis.add_patch(FancyArrowPatch(path=curve, zorder=1 + wide, **_looks(wide)))


def _start(axis: Any, node: Any, out: float, share: float) -> None:
    from matplotlib.patches import FancyArrowPatch

    tail = _toward(node.center, out + TURN, node.radius + 0.23)
    tip = _toward(node.center, out + TURN, node.radius + 0.012)
    axis.add_patch(FancyArrowPatch(tail, tip, shrinkA=0, shrinkB=0, zorder=2, **_looks(share * 0.3, "black", 0.85)))
    axis.plot(*tail, "o", color="black", markersize=3 + 2.5 * share, zorder=2)


def _label(axis: Any, node: Any, out: float, label: str, share: float, beside: bool) -> None:
    """`beside`: the node has a loop or a start; a long label above or below it keeps clear of them."""
    from matplotlib.patheffects import withStroke

    side = math.cos(out)
    across = "center" if abs(side) < 0.3 else "left" if side > 0 else "right"
    clear = 0.14 if beside and across == "center" and len(label) > 8 else 0.0
    x, y = _toward(node.center, out, node.radius + 0.06 + clear)
    text = axis.text(
        x, y + 0.08 * math.sin(out), "", ha=across, va="center", fontsize=10, zorder=4,
        color="black" if share else "0.6", linespacing=1.15,
        path_effects=[withStroke(linewidth=2.5, foreground="white")],
    )  # fmt: skip
    for longest in range(24, 0, -1):
        text.set_text(f"{plain(label, longest)}\n{share:.0%}")
        if text.get_window_extent().width <= ROOM * axis.figure.dpi:
            break
