"""The records of the memory: what is stored, and what a training step tells about its trajectories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from verl_ext.tools.retrieval.types import encodable

# Characters of a stored query or output, and of all names of a plan together; the rest is cut off.
MAX_CHARS = 8192


@dataclass(frozen=True)
class Memory:
    """One memory of one agent, (q, t, P, O, R_M) of Algorithm 1, as a version of the store has it.

    Attributes:
        id: unique in the store, never used again.
        plan: names of what the agent called, in order; empty if it answered by itself.
        time: training step of its insertion, or of its last refresh.
        score: R_M at first, then what Algorithm 1 makes of it.
        similarity: to the query that recalled it, in [-1, 1].
    """

    id: int
    agent: str
    query: str
    plan: tuple[str, ...]
    output: str
    time: int
    score: float
    similarity: float = 0.0


@dataclass(frozen=True)
class Use:
    """One agent's part in one trajectory: what it was asked, did and answered, and what it had recalled before.

    Attributes:
        query: what the agent was asked; for a sub-agent that is not the user's question.
        plan: names of the agents or tools that it called, in order; empty: it answered by itself.
        output: its final answer.
        recalled: ids of the memories in its prompt.
    """

    agent: str
    query: str
    plan: tuple[str, ...]
    output: str
    recalled: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.plan, str) or not all(isinstance(name, str) for name in self.plan):
            raise ValueError(
                f"plan must be a sequence of names, given {self.plan!r:.80}; put a single name in a tuple."
            )
        if not self.agent or encodable(self.agent) != self.agent:
            raise ValueError(f"agent must be a name that UTF-8 can hold, given {self.agent!r:.80}.")
        if len(set(self.recalled)) != len(self.recalled):
            raise ValueError(f"recalled is a set of ids, given {self.recalled!r:.200}; name each memory once.")
        object.__setattr__(self, "query", clean(self.query))
        object.__setattr__(self, "output", clean(self.output))
        object.__setattr__(self, "plan", clean_plan(self.plan))
        object.__setattr__(self, "recalled", tuple(int(number) for number in self.recalled))


@dataclass(frozen=True)
class Episode:
    """One finished trajectory of a question. Failed ones, which have no reward, are left out by the caller.

    Attributes:
        question: identifies the question within the step; its episodes together are the G_NMC trajectories.
        name: of the trajectory, unique within the question. The order of the names is the order of the updates.
        accuracy, format: R_A and R_F. The efficiency term R_E has no place here: R_M = R_A + R_F (Section 3.3).
        uses: of the agents that have a memory, in the order in which they answered.
    """

    question: str
    name: str
    accuracy: float
    format: float
    uses: tuple[Use, ...] = ()

    def __post_init__(self) -> None:
        if not math.isfinite(self.accuracy) or not math.isfinite(self.format):
            raise ValueError(
                f"rewards of an episode must be finite, given accuracy={self.accuracy}, format={self.format} for "
                f"{self.question!r:.80}; leave failed trajectories out."
            )

    @property
    def reward(self) -> float:
        """R_M = R_A + R_F."""
        return self.accuracy + self.format


def clean(text: str) -> str:
    """What is kept of a text: its first MAX_CHARS characters, "?" for lone surrogates."""
    return encodable(text[:MAX_CHARS])


def clean_plan(plan: Sequence[str]) -> tuple[str, ...]:
    """The leading names of a plan, MAX_CHARS characters together; at most so many names."""
    kept, left = [], MAX_CHARS
    for name in plan:
        if left <= 0:
            break
        kept.append(encodable(name[:left]))
        left -= max(1, len(name))
    return tuple(kept)
