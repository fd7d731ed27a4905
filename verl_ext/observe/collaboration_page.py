"""The decision graphs of a log, laid out for the viewer's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl_ext.observe.collaboration import Folded, Question, collaboration
from verl_ext.observe.graph_layout import HEIGHT, LINE, WIDTH, layout, most_frequent
from verl_ext.observe.record import Moment

# Of the most frequent path, choices that the page spells out, and characters of each.
SPELLED, CHARACTERS = 40, 200


def page_index(steps: Mapping[Moment, Sequence[Question]]) -> dict[str, Any]:
    """What the page's index holds of `collaboration`; logged steps by their number in `steps`."""
    numbers = {moment: number for number, moment in enumerate(steps)}
    agents = []
    for agent, (nodes, graphs) in collaboration(steps).items():
        labels, most = nodes.labels, most_frequent(graphs.values())
        moments = {numbers[moment]: _graph(graph) | layout(graph, labels, most) for moment, graph in graphs.items()}
        agents.append({"agent": agent, "labels": [_cut(label) for label in labels], "moments": moments})
    return {"collaboration": agents, "picture": {"width": WIDTH, "height": HEIGHT, "line": LINE}}


def _graph(graph: Folded) -> dict[str, Any]:
    return {
        "paths": graph.paths,
        "numbers": {name: round(value, 6) for name, value in graph.numbers.items()},
        "top": {
            "path": [_cut(choice) for choice in graph.top[:SPELLED]],
            "more": max(0, len(graph.top) - SPELLED),
            "count": graph.top_count,
            "question": graph.question,
        },
    }


def _cut(text: str) -> str:
    return text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…"
