"""Who acts after whom: the decisions in the trajectory log as one graph per deciding agent and logged step.

These graphs cover the logged questions only; the metrics decisions/* and choices/* cover all sampled questions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from verl_ext.observe.decisions import Decision, Path, as_paths, by_agent, figures
from verl_ext.observe.record import Moment

# Choices that a picture shows by name; further ones, the rarest, share one node.
MOST = 12
Question = Mapping[str, Any]


@dataclass(frozen=True)
class Shown:
    """The nodes of an agent's graphs: the same at every step, so that the graphs can be compared.

    Attributes:
        choices: those drawn by name, in their usual order in a path.
        others: number of further choices; they share one node, the last.
    """

    choices: tuple[str, ...]
    others: int = 0

    def place(self, choice: str) -> int:
        """Number of the node that stands for a choice."""
        return self.choices.index(choice) if choice in self.choices else len(self.choices)

    @property
    def labels(self) -> list[str]:
        """One per node."""
        return [*self.choices, *([f"{self.others} others"] if self.others else [])]


@dataclass(frozen=True)
class Folded:
    """All paths of an agent at one logged step as one graph; `Shown.place` numbers its nodes.

    Attributes:
        paths: how many there are.
        counts, first: by node, how often it was chosen, and how many paths begin with it.
        edges: (from, to) -> how often the one was chosen right after the other.
        numbers: see `decisions.figures`.
        top, top_count, question: the most frequent path, its count, and the place of a question that has it.
    """

    paths: int
    counts: list[int]
    first: list[int]
    edges: dict[tuple[int, int], int]
    numbers: dict[str, float]
    top: tuple[str, ...]
    top_count: int
    question: int

    @property
    def shares(self) -> list[float]:
        """By node, its share of all decisions."""
        return [count / sum(self.counts) for count in self.counts]


def paths_in(question: Question) -> list[Path]:
    """The paths of a logged question's finished trajectories."""
    of: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for call in question["calls"]:
        if decision := call["decision"]:
            made = Decision(decision["options"], decision["chosen"], decision["log_prob"])
            for number in call["trajectories"]:
                of[number].append((call["scope"], call["agent"], call["turn"], made))
    finished = [number for number in sorted(of) if question["trajectories"][number]["status"] == "ok"]
    return [path for number in finished for path in as_paths(of[number])]


def shown(paths: Sequence[Path], most: int = MOST) -> Shown:
    """The nodes for these paths of an agent: which choices are drawn by name, and in which order."""
    often = Counter(choice for path in paths for choice in path.choices)
    named = sorted(often, key=lambda choice: (-often[choice], choice))
    named = named if len(named) <= most else named[: most - 1]
    places: dict[str, list[float]] = defaultdict(list)
    for path in paths:
        for n, choice in enumerate(path.choices):
            places[choice].append((n + 0.5) / len(path.choices))
    return Shown(tuple(sorted(named, key=lambda choice: (fmean(places[choice]), choice))), len(often) - len(named))


def fold(paths: Sequence[tuple[int, Path]], nodes: Shown) -> Folded:
    """Fold an agent's paths, each with the place of its question, into one graph. There must be at least one path."""
    node = {choice: nodes.place(choice) for _, path in paths for choice in path.choices}
    counts, first = ([0] * len(nodes.labels) for _ in range(2))
    edges: Counter[tuple[int, int]] = Counter()
    for _, path in paths:
        first[node[path.choices[0]]] += 1
        for choice in path.choices:
            counts[node[choice]] += 1
        edges.update((node[a], node[b]) for a, b in pairwise(path.choices))
    ((top, top_count),) = Counter(path.choices for _, path in paths).most_common(1)
    question = next(question for question, path in paths if path.choices == top)
    numbers = figures([path for _, path in paths])
    return Folded(len(paths), counts, first, dict(edges), numbers, top, top_count, question)


def collaboration(steps: Mapping[Moment, Sequence[Question]]) -> dict[str, tuple[Shown, dict[Moment, Folded]]]:
    """Deciding agent -> the nodes of its graphs, and its graph at every logged step at which it decided.

    Args:
        steps: (phase, step) -> questions, as `record.by_step` gives them.
    """
    found: dict[str, dict[Moment, list[tuple[int, Path]]]] = defaultdict(lambda: defaultdict(list))
    for moment, questions in steps.items():
        for place, question in enumerate(questions):
            for agent, paths in by_agent(paths_in(question)).items():
                found[agent][moment] += [(place, path) for path in paths]
    result = {}
    for agent in sorted(found):
        nodes = shown([path for paths in found[agent].values() for _, path in paths])
        result[agent] = (nodes, {moment: fold(paths, nodes) for moment, paths in found[agent].items()})
    return result
