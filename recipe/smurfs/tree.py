"""The decision tree of DFSDT: the present node, the calls tried there, and the rules of going back. It calls nothing.

Source: "ToolLLM: Facilitating Large Language Models to Master 16000+ Real-world APIs", Section 2.3 (DFSDT, without its
filter: pre-order, the agent's own choice of what comes next).

A node is a list of calls with their results. A call leads to a child node. The search closes a node that the agent
gives up, or from which `width` calls have been tried, and goes back to its parent, where a different call must follow.
It ends when the root is closed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from verl_ext.tools.catalogue.types import canonical


@dataclass(frozen=True)
class Step:
    """One call: the thought before it, the tool, its arguments and its result."""

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
    """The state of a search. `everything`: all steps so far, in order; `rollbacks`: number of closed nodes.

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
        """Whether the search goes on: the root is not closed."""
        return bool(self._way)

    @property
    def path(self) -> list[Step]:
        """The steps from the root to the present node."""
        return [node.step for node in self._way if node.step is not None]

    @property
    def tried(self) -> list[Step]:
        """The calls tried from the present node, all without success."""
        return list(self._way[-1].tried)

    @property
    def deepest(self) -> bool:
        """Whether the path has `max_depth` calls: the agent can only answer or go back."""
        return len(self._way) > self.max_depth

    def has_tried(self, name: str, arguments: dict[str, Any]) -> bool:
        """Whether the same call was made from the present node before."""
        return canonical([name, arguments]) in {step.action for step in self._way[-1].tried}

    def go_on(self, step: Step) -> None:
        """Go to the child node of a call."""
        assert self.open and not self.deepest and not self.has_tried(step.name, step.arguments), step
        self._way[-1].tried.append(step)
        self._way.append(_Node(step))
        self.everything.append(step)

    def give_up(self) -> None:
        """Close the present node and go back to the nearest one from which another call may be tried."""
        self._way.pop()
        self.rollbacks += 1
        while self._way and len(self._way[-1].tried) >= self.width:
            self._way.pop()
            self.rollbacks += 1
