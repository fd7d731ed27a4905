"""Fusion of rankings by their scores: a weighted mean, in which each counts relative to its own best.

Source: Bruch, Gai and Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval", ACM TOIS 42 (2023): a convex
combination of scores that are scaled by their theoretical minimum (BM25: 0, a cosine: -1) and the query's maximum. It
keeps how far ahead a document is, which ranks do not tell: reciprocal rank fusion lets the weaker ranking overrule a
clear result of the other one (docs/results/2026-11-24-tool-search.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from verl_ext.tools.retrieval.types import Hit, Retriever, check_search

# Weight of the cosine, beside BM25's: one for all catalogues.
DENSE = 0.3
# Documents of each ranking that take part (or k, if that is more).
DEPTH = 100


class Part(NamedTuple):
    """A retriever whose scores take part with a weight; lowest: the lowest score that there can be."""

    retriever: Retriever
    weight: float
    lowest: float


def fuse(rankings: Sequence[Sequence[Hit]], parts: Sequence[Part], k: int, depth: int) -> list[Hit]:
    """The first k documents of all rankings together; ties in the order of the first ranking, then of the next.

    A document that a ranking of `depth` documents leaves out has there the score of the last one; in a shorter ranking,
    which has all that match, the lowest.

    Args:
        rankings: hits of each part, best first, each document once.

    Returns:
        Hits whose score is the fused one, in [0, sum of the weights].
    """
    passages: dict[str, Any] = {hit.passage.pid: hit.passage for ranking in rankings for hit in ranking}
    scores = dict.fromkeys(passages, 0.0)
    for ranking, (_, weight, lowest) in zip(rankings, parts, strict=True):
        if ranking and ranking[0].score > lowest:
            own = {hit.passage.pid: hit.score for hit in ranking}
            least, best = ranking[-1].score if len(ranking) >= depth else lowest, ranking[0].score
            for pid in scores:
                scores[pid] += weight * (own.get(pid, least) - lowest) / (best - lowest)
    order = sorted(scores, key=lambda pid: -scores[pid])  # stable: equal scores stay in the order of arrival
    return [Hit(passages[pid], scores[pid]) for pid in order[:k]]


class HybridRetriever:
    """Fuses the rankings of several retrievers over the same passages."""

    backend = "hybrid"

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = list(parts)

    def __len__(self) -> int:
        return len(self.parts[0].retriever)

    def search(self, queries: list[str], k: int) -> list[list[Hit]]:
        """One list per query: at most k hits, best first; [] where no retriever finds anything.

        Raises:
            ValueError: queries is no list of strings, or k no positive integer.
        """
        queries = check_search(queries, k)
        depth = max(k, DEPTH)
        rankings = [part.retriever.search(queries, depth) for part in self.parts]
        return [fuse(found, self.parts, k, depth) for found in zip(*rankings, strict=True)]
