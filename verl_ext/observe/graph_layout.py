"""The layout of a decision graph: choices on a ring, and arrows between them.

The viewer's page (page/graph.js) and the picture of a run (collaboration_plot.py) draw this layout. One unit is one
pixel of the page at its full size; y points down, angles go clockwise from the right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from verl_ext.observe.collaboration import Folded, Question, collaboration
from verl_ext.observe.record import Moment

WIDTH, HEIGHT = 620, 490
# Half axes of the ring.
RING = (162.0, 160.0)
# Between a node's outward direction and that of its loop; on the other side, of the arrow that starts at it.
TURN = math.pi / 3.3
# Widest label; distance of its two lines.
ROOM, LINE = 140.0, 15.0
# Choices of the most frequent path that the page spells out, and characters of each.
SPELLED, CHARACTERS = 40, 200


class Point(NamedTuple):
    """A place in the picture."""

    x: float
    y: float

    def toward(self, angle: float, distance: float) -> Point:
        """The place at this distance in this direction."""
        return Point(self.x + distance * math.cos(angle), self.y + distance * math.sin(angle))


class Node(NamedTuple):
    """A choice: its place, the direction away from the middle of the ring, its radius and its share of the choices."""

    place: Point
    out: float
    radius: float
    share: float


def page_index(steps: Mapping[Moment, Sequence[Question]]) -> dict[str, Any]:
    """What the index of the viewer's page holds of `collaboration`; logged steps by their number in `steps`."""
    numbers = {moment: number for number, moment in enumerate(steps)}
    agents = []
    for agent, (nodes, graphs) in collaboration(steps).items():
        labels, most = nodes.labels, most_frequent(graphs.values())
        moments = {numbers[moment]: _described(graph) | layout(graph, labels, most) for moment, graph in graphs.items()}
        agents.append({"agent": agent, "labels": [_cut(label) for label in labels], "moments": moments})
    return {"collaboration": agents, "picture": {"width": WIDTH, "height": HEIGHT, "line": LINE}}


def _described(graph: Folded) -> dict[str, Any]:
    spelled, more = [_cut(choice) for choice in graph.top[:SPELLED]], max(0, len(graph.top) - SPELLED)
    top = {"path": spelled, "more": more, "count": graph.top_count, "question": graph.question}
    numbers = {name: round(value, 6) for name, value in graph.numbers.items()}
    return {"paths": graph.paths, "numbers": numbers, "top": top}


def _cut(text: str) -> str:
    return text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…"


def most_frequent(graphs: Iterable[Folded]) -> float:
    """How often per path the most frequent edge of these graphs was taken: with it they are drawn on one scale."""
    return max((times / graph.paths for graph in graphs for times in graph.edges.values()), default=1.0)


def layout(graph: Folded, labels: list[str], most: float) -> dict[str, Any]:
    """The layout of a graph, in JSON's types.

    Args:
        labels: by node.
        most: how often per path the edge was taken that is drawn widest.

    Returns:
        `nodes`, in the order of `labels`: `x`, `y`, `radius`, `share`, and of its label `label`: [x, y of the first of
        two baselines, "start" | "middle" | "end", greatest width].
        `ways`, the most frequent last: `from` (null: an arrow to a first choice, with a dot at its beginning), `to`,
        `times`, `width`, `opacity`, `line`: two points (straight), three (a quadratic curve) or four (a cubic one),
        without the head, and `head`: three points.
    """
    nodes = _ring(graph)
    loops = {a for a, b in graph.edges if a == b}
    ways = []
    for (a, b), times in sorted(graph.edges.items(), key=lambda edge: edge[1]):
        width = 1 + 7 * times / graph.paths / most
        opacity = round(min(0.85, 0.3 + width / 12), 2)  # rare ways do not hide the others
        drawn = _loop(nodes[a], width) if a == b else _arc(nodes[a], nodes[b], width)
        ways.append({"from": a, "to": b, "times": times, "width": round(width, 2), "opacity": opacity} | drawn)
    for n, times in enumerate(graph.first):
        if times:
            width = 1 + 5 * times / graph.paths
            drawn = _start(nodes[n], width)
            ways.append({"from": None, "to": n, "times": times, "width": round(width, 2), "opacity": 1.0} | drawn)
    return {
        "nodes": [
            {
                **{"x": round(node.place.x, 1), "y": round(node.place.y, 1), "radius": round(node.radius, 1)},
                **{"share": round(node.share, 6), "label": _label(node, label, n in loops or graph.first[n] > 0)},
            }
            for n, (node, label) in enumerate(zip(nodes, labels, strict=True))
        ],
        "ways": ways,
    }


def _ring(graph: Folded) -> list[Node]:
    """The nodes, clockwise from the top."""
    size = RING if len(graph.counts) > 1 else (0.0, 0.0)
    nodes = []
    for n, share in enumerate(graph.shares):
        out = 2 * math.pi * n / len(graph.counts) - math.pi / 2
        place = Point(WIDTH / 2 + size[0] * math.cos(out), HEIGHT / 2 + size[1] * math.sin(out))
        nodes.append(Node(place, out, 8 + 24 * math.sqrt(share) if share else 4.0, share))
    return nodes


def _label(node: Node, label: str, busy: bool) -> list[Any]:
    """`busy`: the node has a loop or a start; a long label above or below it keeps clear of them."""
    side = math.cos(node.out)
    anchor = "middle" if abs(side) < 0.3 else "start" if side > 0 else "end"
    at = node.place.toward(node.out, node.radius + (23 if busy and anchor == "middle" and len(label) > 8 else 8))
    room = {"middle": ROOM, "start": WIDTH - at.x - 6, "end": at.x - 6}[anchor]
    return [round(at.x, 1), round(at.y - 2 + 14 * math.sin(node.out), 1), anchor, round(min(ROOM, room), 1)]


def _arc(a: Node, b: Node, width: float) -> dict[str, Any]:
    """Bent inwards, where no other node is; more so counter-clockwise, so that there and back are apart."""
    across, down = b.place.x - a.place.x, b.place.y - a.place.y
    far = math.hypot(across, down)
    clockwise = (b.out - a.out) % (2 * math.pi) < math.pi + 1e-6
    side = 0.14 if clockwise else -0.14 - 38 / far
    bend = Point((a.place.x + b.place.x) / 2 - side * down, (a.place.y + b.place.y) / 2 + side * across)
    begin = a.place.toward(math.atan2(bend.y - a.place.y, bend.x - a.place.x), a.radius)
    into = math.atan2(b.place.y - bend.y, b.place.x - bend.x)
    return _arrow([begin, bend], b.place.toward(into, -b.radius - 2), into, width, far - a.radius - b.radius)


def _loop(node: Node, width: float) -> dict[str, Any]:
    middle, opening, far = node.out + TURN, 0.42, node.radius + 36
    line = [node.place.toward(middle - opening, node.radius), node.place.toward(middle - opening, far)]
    line.append(node.place.toward(middle + opening + 0.1, far))
    into = middle + opening + math.pi + 0.25
    return _arrow(line, node.place.toward(middle + opening, node.radius + 2), into, width, 20)


def _start(node: Node, width: float) -> dict[str, Any]:
    """From outside to a choice with which paths begin."""
    out = node.out - TURN
    begin, tip = node.place.toward(out, node.radius + 32), node.place.toward(out, node.radius + 2)
    return _arrow([begin], tip, out + math.pi, width, 24)


def _arrow(line: list[Point], tip: Point, into: float, width: float, room: float) -> dict[str, Any]:
    """A line by these points to a head, which is at most half as long as the room that there is."""
    base = tip.toward(into, -min(5 + 1.4 * width, room / 2))
    head = [tip, *(base.toward(into + side * math.pi / 2, 2.5 + width) for side in (1, -1))]
    return {name: [[round(p.x, 1), round(p.y, 1)] for p in points] for name, points in
            (("line", [*line, base]), ("head", head))}  # fmt: skip
