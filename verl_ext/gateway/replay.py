"""What a run shares with the trajectory that it forks from: the base."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Set
from typing import Any

from verl_ext.gateway.ledger import Entry, Ledger, Log
from verl_ext.gateway.quoting import Answer, words
from verl_ext.mas.differences import first_difference
from verl_ext.mas.types import CallId, Stream

REMEDY = (
    "To fork a call the program runs again, and must then ask the same: no clock, random id or order of a set in a "
    "prompt; let tools be called by endpoint.tool (in a process: /v1/tool), which records them; take randomness from "
    "endpoint.seed (VERL_EXT_SEED); give equal requests that are made at once a `user` of their own each, for which of "
    "them comes first may change. All further trajectories of this worker are sampled without forks."
)


class Replay:
    """Compares a run with its base as it goes on.

    Args:
        stream: of the run; its parent is the base's, if it has one.
        ledger: of the question.
    """

    def __init__(self, stream: Stream, ledger: Ledger):
        self.log = ledger.log(stream)
        self.fork: CallId | None = stream.fork
        self._base: Log | None = None if stream.parent is None else ledger.log(stream.parent)
        # How many of the base's answers have been given here, in the same order and unchanged.
        self._alike = 0
        self._given_up: set[CallId] = set()

    async def ready(self) -> None:
        """Wait until it is known what the run shares with its base: without a fork, what it asks first."""
        if self._base is not None:
            await self._base.begun.wait()

    def known(self, call_id: CallId) -> Entry | None:
        """The same request of the base."""
        return self._base.entries.get(call_id) if self._base is not None else None

    def same_so_far(self, answered: Set[CallId]) -> bool:
        """Whether the program has been told nothing yet that was sampled anew; False without a base.

        answered: the requests that have been answered, failures included.
        """
        return self._base is not None and (not answered if self.fork is None else self.fork not in answered)

    def missing(self) -> bool:
        """Whether the program has not yet asked something that it asked in the base after the answers it has here."""
        if self._base is None:
            return False
        return any(
            one.heard <= self._alike and one.id not in self.log.entries and one.id not in self._given_up
            for one in self._base.entries.values()
        )

    def early(self, call_id: CallId, answered: Set[CallId]) -> bool:
        """Whether the base was given an answer before this one that is still on its way here: sampled anew.

        Otherwise what is replayed would run ahead, and requests would depend on more than in the base.
        """
        if self._base is None or all(call.id != call_id for call in self._base.given):
            return False
        before = itertools.takewhile(lambda call: call.id != call_id, self._base.given)
        return any(call.id in self.log.entries and call.id not in answered for call in before)

    def give_up(self) -> None:
        """Wait no longer for what is missing now."""
        if self._base is not None:
            self._given_up |= self._base.entries.keys() - self.log.entries.keys()

    def follow(self, given: Mapping[CallId, Answer]) -> None:
        """The program has been given these answers."""
        while self._base is not None and self._alike < len(self._base.given):
            expected = self._base.given[self._alike]
            answer = given.get(expected.id)
            if answer is None or answer.call is not expected:
                break
            self._alike += 1

    def difference(self, entry: Entry) -> str:
        """How a request differs from the one of the base that it is most like, and what to do about it."""
        assert self._base is not None
        left = [one for call_id, one in self._base.entries.items() if call_id not in self.log.entries]
        left = [one for one in left if one.id.agent == entry.id.agent] or left
        nearest = max(left, key=lambda one: _common(one.asked, entry.asked), default=None)
        if nearest is None:
            found = f"one more than recorded, {entry.asked:.200}. {REMEDY}"
        else:
            old, new = _readable(nearest.asked), _readable(entry.asked)
            if old == new:  # in the tools or parameters
                old, new = nearest.asked, entry.asked
            found = first_difference(old, new, REMEDY)
        return f"a request to agent {entry.id.agent!r} on replay: {found}"


def _common(one: str, other: str) -> int:
    """Length of the common beginning."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _readable(asked: str) -> Any:
    """The messages of what a request asks."""
    read = json.loads(asked)
    return words(read[0]) if isinstance(read, list) and read and isinstance(read[0], list) else asked
