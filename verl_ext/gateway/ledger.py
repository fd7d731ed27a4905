"""What the gateway keeps of a question: which requests each of its trajectories has made, and when."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from verl_ext.mas.types import Call, CallId, Stream

if TYPE_CHECKING:
    from verl_ext.mas.forest import Forest

NAME = "gateway"


@dataclass(eq=False)
class Entry:
    """A request, or the call of a tool.

    Attributes:
        id: of the call.
        asked: what it asks, as a text.
        heard: how many answers the program had been given when it asked.
        parents: the calls that it depends on; known once it has been made.
        frontier: the calls answered before it that no answered call depends on.
        used: the calls that it quotes, and those whose short outputs stand in it.
    """

    id: CallId
    asked: str
    heard: int
    parents: tuple[CallId, ...] | None = None
    frontier: list[Call] = field(default_factory=list)
    used: list[Call] = field(default_factory=list)


@dataclass(eq=False)
class Log:
    """One trajectory: its requests in the order in which they came, the calls in the order in which they were given.

    Attributes:
        begun: set when the program has asked all that it asks before it is given any answer, or has ended.
    """

    entries: dict[CallId, Entry] = field(default_factory=dict)
    given: list[Call] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    def used_beside(self, entry: Entry) -> set[Call]:
        """What is used by others than this request that had heard no more answers than it when they were made."""
        others = [one for one in self.entries.values() if one is not entry and one.heard <= entry.heard]
        return {call for one in others for call in one.used}


@dataclass(eq=False)
class Ledger:
    """The logs of a question's trajectories, and what was answered beside the text."""

    logs: dict[Stream, Log] = field(default_factory=dict)
    # Of each answered call, the second since 1970 in which it was answered first: part of the answer's bytes.
    created: dict[Call, int] = field(default_factory=dict)

    @classmethod
    def of(cls, forest: Forest) -> Ledger:
        """The ledger of this question."""
        return forest.kept.setdefault(NAME, cls())

    def log(self, stream: Stream) -> Log:
        """The log of the trajectory in this stream."""
        return self.logs.setdefault(stream, Log())
