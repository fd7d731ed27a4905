"""DFSDT's decision tree: where the search is, what was tried there, and how it goes back. No model, no tool in it.

Source: "ToolLLM: Facilitating Large Language Models to Master 16000+ Real-world APIs", Section 2.3 (DFSDT, without its
filter: pre-order, the agent's own choice of what comes next).

A node is a state: the calls on the way to it, with their results. A call leads to a new node below. A node that is
given up, or below which `width` ways have been tried, is closed, and the search goes back to the node above, which must
then find a way that it has not tried. It ends when the root is closed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from verl_ext.tools.catalogue.types import canonical


@dataclass(frozen=True)
class Step:
    """One call: the thought before it, the tool, its arguments, and what it gave."""

    thought: str
    name: str
    arguments: dict[str, Any]
    observation: str

    @property
    def action(self) -> str:
        """The call alone; equal calls are equal texts."""
        return canonical([self.name, self.arguments])


@dataclass
class _Node:
    step: Step | None
    tried: list[Step] = field(default_factory=list)


@dataclass
class Tree:
    """The state of a search. `everything`: all steps ever made, in order; `rollbacks`: nodes that were left for good.

    Args:
        width: calls that are tried at a node (ToolLLM: 2).
        max_depth: calls on a path.
    """

    width: int
    max_depth: int
    everything: list[Step] = field(default_factory=list)
    rollbacks: int = 0
    _way: list[_Node] = field(default_factory=lambda: [_Node(None)])

    @property
    def open(self) -> bool:
        """False: the root is closed."""
        return bool(self._way)

    @property
    def path(self) -> list[Step]:
        """The steps that led here."""
        return [node.step for node in self._way if node.step is not None]

    @property
    def tried(self) -> list[Step]:
        """What was called from here before; all of it has failed."""
        return list(self._way[-1].tried)

    @property
    def deepest(self) -> bool:
        """No call leads on from here: there is an answer, or the way back."""
        return len(self._way) > self.max_depth

    def has_tried(self, name: str, arguments: dict[str, Any]) -> bool:
        """This very call was made from here before."""
        return canonical([name, arguments]) in {step.action for step in self._way[-1].tried}

    def go_on(self, step: Step) -> None:
        """A call was made here: the search goes to where it leads."""
        assert self.open and not self.deepest and not self.has_tried(step.name, step.arguments), step
        self._way[-1].tried.append(step)
        self._way.append(_Node(step))
        self.everything.append(step)

    def give_up(self) -> None:
        """This node leads nowhere: back, to the next node from which something else may still be tried."""
        self._way.pop()
        self.rollbacks += 1
        while self._way and len(self._way[-1].tried) >= self.width:
            self._way.pop()
            self.rollbacks += 1
