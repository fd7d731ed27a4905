"""The records of the memory: stored memories, and the trajectories from which a training step makes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from verl_ext.tools.retrieval.types import encodable

# Characters of a stored query or output, and of all names of a plan together; longer texts are cut.
MAX_CHARS = 8192


@dataclass(frozen=True)
class Memory:
    """One memory of one agent, (q, t, P, O, R_M) of Algorithm 1, as of one version of the store.

    Attributes:
        id: unique in the store, never used again.
        plan: names of the agents or tools that the agent called, in order; empty if it called none.
        time: training step of its insertion, or of its last refresh.
        score: R_M at insertion, changed by Algorithm 1 afterwards.
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
    """One agent's part in one trajectory: its query, its calls, its answer, and the memories that it had recalled.

    Attributes:
        query: the agent's input; for a sub-agent that is not the user's question.
        plan: names of the agents or tools that it called, in order; empty if it called none.
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
    """One finished trajectory of a question. The caller leaves out failed trajectories, which have no reward.

    Attributes:
        question: identifies the question within the step; its episodes together are the G_NMC trajectories.
        name: of the trajectory, unique within the question. Updates are made in the order of the names.
        accuracy, format: R_A and R_F. The efficiency term R_E does not count: R_M = R_A + R_F (Section 3.3).
        uses: one per agent with a memory, in the order in which they answered.
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
    """The first MAX_CHARS characters of a text, with "?" for lone surrogates."""
    return encodable(text[:MAX_CHARS])


def clean_plan(plan: Sequence[str]) -> tuple[str, ...]:
    """The leading names of a plan, with at most MAX_CHARS characters together, and at most that many names."""
    kept, left = [], MAX_CHARS
    for name in plan:
        if left <= 0:
            break
        kept.append(encodable(name[:left]))
        left -= max(1, len(name))
    return tuple(kept)
