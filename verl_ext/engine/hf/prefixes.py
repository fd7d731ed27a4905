"""Which prefixes of prompts are in slots already. No tensors."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

# A shared prefix saves its tokens' work, and costs a copy and often one more forward pass: it must save at least this.
SHARED_WORK = 4e9  # floating point operations: 20 tokens of a model of 100M parameters; tiny models share no prefixes


def shared_from(parameters: int, max_model_len: int) -> int | None:
    """Tokens that prompts must have in common to share them, for a model of so many parameters without embeddings.

    None: no prefix is long enough to pay, only whole prompts are shared.
    """
    least = max(16, round(SHARED_WORK / (2 * max(1, parameters))))
    return least if least < max_model_len else None


@dataclass(frozen=True)
class Held:
    """Keys and values in a slot: of these tokens (as bytes), under this adapter."""

    slot: int
    owner: str
    key: bytes


class Left:
    """What requests that have ended left in the slots after the running ones."""

    def __init__(self) -> None:
        self._by_slot: dict[int, Held] = {}

    def __iter__(self) -> Iterator[Held]:
        return iter(self._by_slot.values())

    def put(self, ended: Iterable[Held], moved: Mapping[int, int]) -> None:
        """Keys and values of ended requests, by the slot each had; `moved`: slot then -> slot now."""
        for held in ended:
            slot = moved.get(held.slot, held.slot)
            self._by_slot[slot] = replace(held, slot=slot)

    def overwrite(self, first: int, last: int) -> None:
        """The slots [first, last) have got requests."""
        for slot in range(first, last):
            self._by_slot.pop(slot, None)

    def clear(self) -> None:
        """The slots have been freed."""
        self._by_slot.clear()


def as_bytes(tokens: Sequence[int]) -> bytes:
    """Token ids as 8 bytes each."""
    return array("q", tokens).tobytes()


def common_prefix(one: bytes, other: bytes) -> int:
    """How many tokens two sequences of `as_bytes` begin with in common."""
    low, high = 0, min(len(one), len(other)) // 8
    if one[: 8 * high] == other[: 8 * high]:
        return high
    while low + 1 < high:  # common to `low` tokens, not to `high`
        middle = (low + high) // 2
        if one[8 * low : 8 * middle] == other[8 * low : 8 * middle]:
            low = middle
        else:
            high = middle
    return low
