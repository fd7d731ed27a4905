"""Draws the layout of a decision graph (graph_layout.py) with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl_ext.observe.graph_layout import HEIGHT, LINE, WIDTH

# Points per unit of the layout, where two graphs stand side by side.
SCALE = 0.7


def plain(text: str, longest: int = 18) -> str:
    """A name as matplotlib can draw it: one line, no formulas, nothing invisible, not too long."""
    seen = "".join(letter if letter.isprintable() else " " for letter in text)
    cut = seen if len(seen) <= longest else seen[: longest - 1] + "…"
    return cut.replace("\\", "\N{FULLWIDTH REVERSE SOLIDUS}").replace("$", r"\$")


def draw_graph(axis: Any, layout: Mapping[str, Any], labels: Sequence[str], colours: Sequence[Any]) -> None:
    """Draw a layout; labels and colours by node."""
    from matplotlib.patches import Circle, PathPatch, Polygon
    from matplotlib.path import Path

    for way in layout["ways"]:
        points, colour = way["line"], "0.35" if way["from"] is not None else "black"
        codes = [Path.MOVETO, *[{2: Path.LINETO, 3: Path.CURVE3, 4: Path.CURVE4}[len(points)]] * (len(points) - 1)]
        looks = {"alpha": way["opacity"], "zorder": 1 + way["width"] / 10}
        line = Path(points, codes)
        axis.add_patch(
            PathPatch(line, fill=False, edgecolor=colour, linewidth=SCALE * way["width"], capstyle="butt", **looks)
        )
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
