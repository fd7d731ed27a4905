"""The rules of the depth-first search over tools with stable rollback. It calls neither models nor tools.

Source: "Smurfs: Leveraging Multiple Proficiency Agents with Context-Efficiency for Tool Planning", Sections 3.2 (tools,
memory) and 3.4 (stable rollback).

    τ_t      the tools that may be chosen at depth t; a tool that errs is popped from it
    τ_t = ∅  dead end: m_{t−1} is popped from the local memory, the tool chosen at t − 1 from τ_{t−1}, t ← t − 1
    memory   local: (thought, answer) of the steps on the path; global: of all steps ever made

A search visits no (depth, path, tool) twice, and ends: with τ_0 = ∅, when its calls are used up, or, if it does not go
back there (`ends_deepest`), with a path of `max_depth` steps, the paper's maximum number of planned steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Element:
    """m_t: the tool that was called, the thought before it and the answer after it."""

    tool: str
    thought: str
    answer: str


@dataclass
class Search:
    """The state of one sub-task's search.

    Args:
        tools: D, names of all tools, in order.
        max_calls: tool calls after which the search ends.
        max_depth: steps of a path.
        ends_deepest: after the last one the search ends; otherwise it goes back.
    """

    tools: Sequence[str]
    max_calls: int
    max_depth: int
    ends_deepest: bool = False
    local: list[Element] = field(default_factory=list)
    everything: list[Element] = field(default_factory=list)
    calls: int = 0
    rollbacks: int = 0

    def __post_init__(self) -> None:
        # τ_0 … τ_t.
        self._lists: list[list[str]] = [list(dict.fromkeys(self.tools))]

    @property
    def depth(self) -> int:
        """t."""
        return len(self.local)

    @property
    def open(self) -> list[str]:
        """τ_t, from which the next tool is chosen; empty: the search has ended."""
        ended = self.calls >= self.max_calls or (self.ends_deepest and self.depth >= self.max_depth)
        return [] if ended else list(self._lists[-1])

    @property
    def path(self) -> tuple[str, ...]:
        """The tools on the path to the present depth."""
        return tuple(element.tool for element in self.local)

    def fail(self, tool: str) -> None:
        """Pop `tool`, whose call failed; if no tool is left at this depth, roll back."""
        self._take(tool)
        self._lists[-1].remove(tool)
        self._roll_back()

    def go_on(self, element: Element) -> None:
        """Go deeper: remember a call whose answer does not solve the sub-task."""
        self._take(element.tool)
        self.local.append(element)
        self.everything.append(element)
        deeper = self.depth < self.max_depth or self.ends_deepest
        self._lists.append(list(dict.fromkeys(self.tools)) if deeper else [])
        self._roll_back()

    def _take(self, tool: str) -> None:
        assert tool in self.open, f"{tool} is not open at depth {self.depth}: {self.open}"
        self.calls += 1

    def _roll_back(self) -> None:
        while not self._lists[-1] and self.depth:
            self._lists.pop()
            self._lists[-1].remove(self.local.pop().tool)
            self.rollbacks += 1
