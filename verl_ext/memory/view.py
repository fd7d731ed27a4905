"""Views: the memories as they were after one training step. A view never changes and can be pickled.

Recall is exact and does not depend on the other queries of a batch: a float32 scan finds all memories that could be
among the best k, and float64 cosines, computed pair by pair, decide. (The last bits of a scan depend on the shape of
the matrix product, and a replayed trajectory must recall the same memories.)
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from verl_ext.memory.records import Memory, clean
from verl_ext.memory.similarity import Similarity, inner

QUERIES_AT_ONCE = 64
MANY_TIES = 64  # with more candidates, those whose query k older memories have, too, are left out
LANES = 64  # of the blocks whose maxima give a bound for the k-th best score

# query, plan, output
Text = tuple[str, tuple[str, ...], str]


@dataclass(frozen=True, eq=False)
class Shelf:
    """One agent's memories, ids ascending.

    Attributes:
        ids, times: (n,) int64. scores: (n,) float64.
        vectors: (width, n) float32, of the queries; one column per memory: a query scans columns twice as fast as rows.
        texts: n triples of query, plan, output.
    """

    ids: np.ndarray
    times: np.ndarray
    scores: np.ndarray
    vectors: np.ndarray
    texts: list[Text]

    def __post_init__(self) -> None:
        for array in (self.ids, self.times, self.scores, self.vectors):
            array.setflags(write=False)

    @classmethod
    def empty(cls, width: int) -> Shelf:
        """Without memories."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), np.empty((width, 0), np.float32), [])

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def earlier(self) -> np.ndarray:
        """(n,) number of older memories with the same query; with k of them a memory is never among the best k."""
        seen: Counter[str] = Counter()
        counts = np.empty(len(self), dtype=np.int64)
        for row, (query, _, _) in enumerate(self.texts):
            counts[row] = seen[query]
            seen[query] += 1
        return counts

    def rows_of(self, ids: Sequence[int]) -> np.ndarray:
        """(len(ids),) positions, -1 for memories that are not here."""
        wanted = np.asarray(ids, dtype=np.int64).reshape(-1)
        rows = np.searchsorted(self.ids, wanted)
        found = rows < len(self)
        found[found] = self.ids[rows[found]] == wanted[found]
        return np.where(found, rows, -1)


@dataclass(frozen=True, eq=False)
class View:
    """All agents' memories after step `version`.

    Attributes:
        version: the last step that was applied; 0 before the first.
        similarity: with which queries are compared.
        shelves: by agent; an agent without memories may be absent.
        next_id: of the next memory.
    """

    version: int
    similarity: Similarity
    shelves: Mapping[str, Shelf] = field(default_factory=dict)
    next_id: int = 1

    def __len__(self) -> int:
        return sum(len(shelf) for shelf in self.shelves.values())

    def recall(self, agent: str, query: str, k: int) -> list[Memory]:
        """The `k` memories of `agent` whose queries are most similar, best first; equal ones by id, oldest first.

        Fewer if there are fewer; none for a blank query.

        Raises:
            ValueError: k is not an integer >= 1.
        """
        return self.recall_many([(agent, query)], k)[0]

    def recall_many(self, asked: Sequence[tuple[str, str]], k: int) -> list[list[Memory]]:
        """`recall` for each (agent, query), with the same results; much faster for many."""
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ValueError(f"k must be an integer >= 1 (memories per query), given {k!r}.")
        found: list[list[Memory]] = [[] for _ in asked]
        by_agent: dict[str, list[int]] = {}
        for number, (agent, _) in enumerate(asked):
            if len(self.shelves.get(agent, ())):
                by_agent.setdefault(agent, []).append(number)
        for agent, numbers in by_agent.items():
            for start in range(0, len(numbers), QUERIES_AT_ONCE):
                part = numbers[start : start + QUERIES_AT_ONCE]
                queries = self.similarity.encode([clean(asked[number][1]) for number in part])
                scans = queries @ self.shelves[agent].vectors
                for number, query, scan in zip(part, queries, scans, strict=True):
                    found[number] = self._best(agent, query, scan, k) if query.any() else []
        return found

    def _best(self, agent: str, query: np.ndarray, scan: np.ndarray, k: int) -> list[Memory]:
        """The best k, given approximate cosines `scan` (n,)."""
        shelf = self.shelves[agent]
        # Of any order of summation: |fl(x·y) − x·y| <= d·u·|x|·|y| (Higham, 2002, section 3.1), on either side.
        slack = 2.1 * len(query) * 2.0**-24
        rows = np.flatnonzero(scan >= _reached(scan, k) - slack)
        if len(rows) > MANY_TIES:
            rows = rows[shelf.earlier[rows] < k]
        cosines = inner(shelf.vectors[:, rows].T, query)
        order = np.lexsort((shelf.ids[rows], -cosines))[:k]
        return [memory_at(shelf, agent, rows[at], float(cosines[at])) for at in order]

    def memories(self, agent: str) -> list[Memory]:
        """All memories of `agent`, oldest first."""
        shelf = self.shelves.get(agent) or Shelf.empty(self.similarity.width)
        return [memory_at(shelf, agent, row) for row in range(len(shelf))]

    def content_hash(self) -> str:
        """SHA-256 of the whole state: version, next id, and each memory with its vector."""
        digest = hashlib.sha256(f"{self.version} {self.next_id} {self.similarity.name}".encode())
        for agent in sorted(agent for agent, shelf in self.shelves.items() if len(shelf)):
            shelf = self.shelves[agent]
            digest.update(json.dumps([agent, *shelf.texts]).encode())
            for array in (shelf.ids, shelf.times, shelf.scores, shelf.vectors):
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def memory_at(shelf: Shelf, agent: str, row: int, similarity: float = 0.0) -> Memory:
    """The memory at a position of a shelf."""
    query, plan, output = shelf.texts[row]
    time, score = int(shelf.times[row]), float(shelf.scores[row])
    return Memory(int(shelf.ids[row]), agent, query, plan, output, time, score, similarity)


def _reached(scan: np.ndarray, k: int) -> float:
    """A score that at least min(k, n) of `scan` (n,) reach: the k-th largest of the maxima of its blocks.

    Exact for one memory per block, and ten times faster than partitioning the whole scan.
    """
    columns = len(scan) // LANES
    if columns < k:
        return float(np.partition(scan, len(scan) - k)[len(scan) - k]) if k < len(scan) else -np.inf
    tops = scan[: columns * LANES].reshape(LANES, columns).max(axis=0)
    return float(np.partition(tops, columns - k)[columns - k])
