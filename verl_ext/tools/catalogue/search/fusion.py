"""Reciprocal rank fusion: merges several rankings into one.

Source: Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning
Methods", SIGIR 2009. A document's score is the sum over the rankings of 1 / (10 + its rank), ranks from 1; a ranking in
which it does not occur adds nothing. Only ranks count, so BM25's sums and cosines need no common scale. The paper's
constant is 60, for rankings of 1,000 documents; catalogues of tools are smaller, and there 10 finds more
(docs/results/2026-11-23-tool-search.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl_ext.tools.retrieval.types import Hit, Retriever, check_search

CONSTANT = 10
# Documents of each ranking that take part (or k, if that is more).
DEPTH = 100


def fuse(rankings: Sequence[Sequence[Hit]], k: int) -> list[Hit]:
    """The first k documents of all rankings together; ties in the order of the first ranking, then of the next.

    Args:
        rankings: hits, best first, each document once.

    Returns:
        Hits whose score is the fused one, in (0, len(rankings) / 11].
    """
    scores: dict[str, float] = {}
    passages: dict[str, Any] = {}
    for ranking in rankings:
        for rank, hit in enumerate(ranking, 1):
            scores[hit.passage.pid] = scores.get(hit.passage.pid, 0.0) + 1 / (CONSTANT + rank)
            passages[hit.passage.pid] = hit.passage
    best = sorted(scores, key=lambda pid: -scores[pid])  # stable: equal scores stay in the order of arrival
    return [Hit(passages[pid], scores[pid]) for pid in best[:k]]


class HybridRetriever:
    """Fuses the rankings of several retrievers over the same passages."""

    backend = "hybrid"

    def __init__(self, retrievers: Sequence[Retriever]) -> None:
        self.retrievers = list(retrievers)

    def __len__(self) -> int:
        return len(self.retrievers[0])

    def search(self, queries: list[str], k: int) -> list[list[Hit]]:
        """One list per query: at most k hits, best first; [] where no retriever finds anything.

        Raises:
            ValueError: queries is no list of strings, or k no positive integer.
        """
        check_search(queries, k)
        rankings = [retriever.search(queries, max(k, DEPTH)) for retriever in self.retrievers]
        return [fuse(found, k) for found in zip(*rankings, strict=True)]
