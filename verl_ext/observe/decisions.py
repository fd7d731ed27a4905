"""Metrics of agents that decide who acts next: how certain they are, what they choose, and the graphs of their choices.

A path is the list of choices of one agent in one trajectory and scope. Folded, it is a directed graph: its nodes are
the choices, and an edge leads from each choice to the next (Puppeteer, Section 3.3). The graph of a whole episode, in
which several may act side by side, is the workflow's to report.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from statistics import fmean
from typing import TYPE_CHECKING

from verl_ext.mas.choices import named
from verl_ext.mas.types import Call, Trajectory

if TYPE_CHECKING:  # imported where it is used: the start of a run that has no decisions would pay for it
    import networkx

# Different texts of an agent that are counted by name wherever they come from.
NAMED = 32
# Elementary cycles of one graph that are counted; a long walk among many agents can have millions.
MOST_CYCLES = 1000


@dataclass(frozen=True)
class Decision:
    """One decision.

    Attributes:
        options: the texts to choose from.
        chosen: one of them; None: none of them (a served model may write anything).
        log_prob: log π(chosen) among the options; None: not known.
    """

    options: Sequence[str]
    chosen: str | None
    log_prob: float | None

    @property
    def surprise(self) -> float | None:
        """−log π of the choice, in nats; None if it is unknown or there was only one option."""
        return -self.log_prob if self.log_prob is not None and len(self.options) > 1 else None


@dataclass(frozen=True)
class Path:
    """What `agent` chose, in order.

    Attributes:
        surprise: mean of −log π over its decisions with several options; None: no such probability is known.
        options: mean number of options of its decisions; None: not known.
    """

    agent: str
    choices: tuple[str, ...]
    surprise: float | None = None
    options: float | None = None


def decision_of(call: Call) -> Decision | None:
    """The decision that a call made; None: the call is no decision."""
    if not call.decides:
        return None
    chosen = named(call.text, call.options) if call.status.trainable else None
    made = call.generation
    return Decision(call.options, chosen, sum(made.log_probs) if made.allowed else made.decided)


def paths_of(trajectory: Trajectory) -> list[Path]:
    """All paths of a trajectory, by scope and agent."""
    return as_paths((call.id.scope, call.agent, call.turn, decision_of(call)) for call in trajectory.calls)


def as_paths(calls: Iterable[tuple[Sequence[str], str, int, Decision | None]]) -> list[Path]:
    """The paths of one trajectory's calls, each given by scope, agent, turn, and its decision if it is one."""
    found: dict[tuple[tuple[str, ...], str], dict[int, Decision]] = defaultdict(dict)
    for scope, agent, turn, decision in calls:
        if decision is not None and decision.chosen is not None:
            found[tuple(scope), agent][turn] = decision
    paths = []
    for (_, agent), by_turn in sorted(found.items()):
        made = [by_turn[turn] for turn in sorted(by_turn)]
        surprises = [decision.surprise for decision in made if decision.surprise is not None]
        surprise = fmean(surprises) if surprises else None
        options = fmean(len(decision.options) for decision in made)
        paths.append(Path(agent, tuple(decision.chosen for decision in made), surprise, options))
    return paths


def folded(choices: Sequence[str]) -> networkx.DiGraph:
    """The graph of a path; an edge's `weight` is how often it was taken."""
    import networkx

    graph = networkx.DiGraph()
    graph.add_nodes_from(choices)
    for edge, count in Counter(pairwise(choices)).items():
        graph.add_edge(*edge, weight=count)
    return graph


def structure(graph: networkx.DiGraph) -> dict[str, float]:
    """density: edges / possible edges, loops included, n²; cycles: elementary ones; cycle_length: their mean length.

    Both of the first `MOST_CYCLES` cycles only.
    """
    import networkx

    lengths = [len(cycle) for cycle in islice(networkx.simple_cycles(graph), MOST_CYCLES)]
    found = {"density": graph.number_of_edges() / len(graph) ** 2, "cycles": float(len(lengths))}
    return found | ({"cycle_length": fmean(lengths)} if lengths else {})


def figures(paths: Sequence[Path]) -> dict[str, float]:
    """The numbers of decisions/<agent>/* (observe/metrics.py) of one agent's paths, as far as they have a value."""
    taken = Counter(path.choices for path in paths)
    graphs = {choices: structure(folded(choices)) for choices in taken}
    numbers = {
        "length": fmean(len(path.choices) for path in paths),
        "top_path": max(taken.values()) / len(paths),
        "paths": len(taken) / len(paths),
    }
    for name, values in (
        ("entropy", [path.surprise for path in paths]),
        ("options", [path.options for path in paths]),
        *((name, [graphs[path.choices].get(name) for path in paths]) for name in ("density", "cycles", "cycle_length")),
    ):
        known = [value for value in values if value is not None]
        if known:
            numbers[name] = fmean(known)
    return numbers


def by_agent(paths: Iterable[Path]) -> dict[str, list[Path]]:
    """Agent -> its paths; agents in alphabetical order."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        found[path.agent].append(path)
    return dict(sorted(found.items()))


def deciding(metrics: Iterable[str]) -> list[str]:
    """The agents that have decisions/* among these names of training metrics, in alphabetical order."""
    start, end = "decisions/", "/top_path"
    return sorted(name[len(start) : -len(end)] for name in metrics if name.startswith(start) and name.endswith(end))


def decision_metrics(paths: Iterable[Path]) -> dict[str, float]:
    """decisions/* and choices/* of a batch's paths.

    An agent has no choices/* if it chose more than `NAMED` different texts, and more than one decision offers: then the
    options differ from decision to decision (e.g. the tools of a question), and there may be thousands.
    """
    metrics: dict[str, float] = {}
    for agent, own in by_agent(paths).items():
        metrics |= {f"decisions/{agent}/{name}": value for name, value in figures(own).items()}
        chosen = Counter(choice for path in own for choice in path.choices)
        widest = max((path.options for path in own if path.options is not None), default=math.inf)
        if len(chosen) > max(NAMED, widest):
            continue
        metrics |= {f"choices/{agent}/{name}": n / chosen.total() for name, n in sorted(chosen.items())}
    return metrics
