"""Metrics of agents that decide who acts next: how sure they are, what they choose, and the graphs that come of it.

A path is what one agent has chosen in one trajectory and scope, in order. Folded, it is a directed graph: what was
chosen are its nodes, an edge leads from each choice to the next (Puppeteer, Section 4.2).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

import networkx

from verl_ext.mas.types import Trajectory


@dataclass(frozen=True)
class Path:
    """What `agent` chose, in order; the mean of −log π over its decisions among several, if there was one."""

    agent: str
    choices: tuple[str, ...]
    surprise: float | None = None


def paths_of(trajectory: Trajectory) -> list[Path]:
    """All paths of a trajectory, by scope and agent."""
    found: dict[tuple, list] = defaultdict(list)
    for call in trajectory.calls:
        if call.decides and call.status.trainable:
            found[call.id.scope, call.agent].append(call)
    paths = []
    for (_, agent), calls in sorted(found.items()):
        calls.sort(key=lambda call: call.turn)
        open_ones = [call for call in calls if any(len(allowed) > 1 for allowed in call.generation.allowed)]
        surprises = [-sum(call.generation.log_probs) for call in open_ones]
        paths.append(Path(agent, tuple(call.text for call in calls), fmean(surprises) if surprises else None))
    return paths


def folded(choices: Sequence[str]) -> networkx.DiGraph:
    """The graph of a path; an edge's `weight` is how often it was taken."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(choices)
    for edge, count in Counter(pairwise(choices)).items():
        graph.add_edge(*edge, weight=count)
    return graph


def structure(graph: networkx.DiGraph) -> dict[str, float]:
    """density: edges / possible edges, loops included, n²; cycles: elementary ones; cycle_length: their mean length."""
    lengths = [len(cycle) for cycle in networkx.simple_cycles(graph)]
    found = {"density": graph.number_of_edges() / len(graph) ** 2, "cycles": float(len(lengths))}
    return found | ({"cycle_length": fmean(lengths)} if lengths else {})


def decision_metrics(paths: Iterable[Path]) -> dict[str, float]:
    """decisions/* and choices/* of a batch's paths."""
    by_agent: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        by_agent[path.agent].append(path)
    metrics: dict[str, float] = {}
    for agent, own in sorted(by_agent.items()):
        taken = Counter(path.choices for path in own)
        graphs = {choices: structure(folded(choices)) for choices in taken}
        surprises = [path.surprise for path in own if path.surprise is not None]
        numbers = {
            "length": fmean(len(path.choices) for path in own),
            "top_path": max(taken.values()) / len(own),
            "paths": len(taken) / len(own),
        }
        if surprises:
            numbers["entropy"] = fmean(surprises)
        for name in ("density", "cycles", "cycle_length"):
            values = [graphs[path.choices][name] for path in own if name in graphs[path.choices]]
            if values:
                numbers[name] = fmean(values)
        metrics |= {f"decisions/{agent}/{name}": value for name, value in numbers.items()}
        chosen = Counter(choice for path in own for choice in path.choices)
        metrics |= {f"choices/{agent}/{name}": n / chosen.total() for name, n in sorted(chosen.items())}
    return metrics
