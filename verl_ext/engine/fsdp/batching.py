"""Groups rows into trees of common prefixes, and trees into batches. Plain lists, no tensors."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from os.path import commonprefix

# A batch's longest tree is at most this many times its shortest: little padding, few batches.
SPREAD = 1.4
# Padded tokens of a batch: its tensors stay in the processor's cache (of 1,024 … 20,000 the fastest).
BATCH_TOKENS = 2048
# A token whose layers are computed twice costs so much more: two forward passes and a backward pass, which is as two.
TWICE = 4 / 3
# Numbers of parts that are tried grow by this factor.
GROWTH = 1.25
# End of a subtree that still grows.
OPEN = sys.maxsize


@dataclass
class Tree:
    """Rows of which every prefix that some have in common stands once.

    Tokens stand depth first: a token's descendants follow it, so it is seen from its own column up to its end.

    Attributes:
        tokens, positions: per column the token, and its place in its row.
        ends: per column the end (exclusive) of its descendants.
        rows: (row of the micro-batch, columns that predict the response, response) of each row.
        kind: of its rows; see `share`.
    """

    kind: int = 0
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    rows: list[tuple[int, list[int], list[int]]] = field(default_factory=list)
    _path: list[int] = field(default_factory=list)  # the latest row's columns

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, row: int, prompt: list[int], response: list[int], known: int) -> None:
        """Add a row, of which the first `known` tokens are those of the latest row."""
        for column in self._path[known:]:
            self.ends[column] = len(self)
        new = (prompt + response[:-1])[known:]
        self._path[known:] = range(len(self), len(self) + len(new))
        self.tokens += new
        self.positions += range(known, known + len(new))
        self.ends += [OPEN] * len(new)
        self.rows.append((row, self._path[len(prompt) - 1 :], response))


def share(
    prompts: Sequence[list[int]],
    responses: Sequence[list[int]],
    kinds: Sequence[int] | None = None,
    reach: int = 1024,
) -> list[Tree]:
    """Put rows into trees, as far as that saves time. No prompt and no response may be empty.

    A tree of N tokens costs N + N² / reach: attention is computed between all of its tokens, though a mask hides those
    of other rows. In the order of their tokens each row has its longest common prefix with a neighbour; it joins that
    one's tree if it costs less there than alone.

    Args:
        kinds: of each row; only rows of one kind share. None: all are of kind 0.
        reach: so many keys in attention cost as much as all the rest of a token.
    """
    assert all(prompts) and all(responses), "a row has no prompt or no response"
    kinds = [0] * len(prompts) if kinds is None else kinds
    read = [prompt + response[:-1] for prompt, response in zip(prompts, responses, strict=True)]
    trees: list[Tree] = []
    previous: list[int] = []
    for row in sorted(range(len(read)), key=lambda row: (kinds[row], read[row])):
        known = len(commonprefix([previous, read[row]])) if trees and trees[-1].kind == kinds[row] else 0
        alone = len(read[row])
        if not known or _cost(len(trees[-1]) + alone - known, reach) - _cost(len(trees[-1]), reach) >= _cost(
            alone, reach
        ):
            trees.append(Tree(kinds[row]))
            known = 0
        trees[-1].add(row, prompts[row], responses[row], known)
        previous = read[row]
    return trees


def cheapest_number(
    trees: Sequence[Tree],
    shared: Callable[[list[int]], list[Tree]],
    least: int,
    once: Callable[[list[Tree]], bool],
    twice: Callable[[list[Tree]], bool],
    reach: int = 1024,
) -> int:
    """Into how many parts `split_rows` should split the rows for a training step.

    More parts compute more tokens, because prefixes that rows of different parts have in common are computed in each.
    Fewer parts may keep so much for the backward pass that their layers are computed twice.

    Args:
        trees: of all rows.
        shared: the trees of some rows alone.
        least: parts at least.
        once, twice: whether there is memory for a part, as it is, or if its layers are computed twice.
        reach: see `share`.
    """
    rows = sum(len(tree.rows) for tree in trees)
    number = best = min(least, rows)
    lowest = float("inf")
    while True:
        parts = [list(trees)] if number == 1 else [shared(part) for part in split_rows(trees, number)]
        costs = [sum(_cost(len(tree), reach) for tree in part) for part in parts]
        fit = [once(part) for part in parts]
        total = sum(cost if kept else TWICE * cost for cost, kept in zip(costs, fit, strict=True))
        possible = number == rows or all(kept or twice(part) for part, kept in zip(parts, fit, strict=True))
        if possible and total < lowest:
            best, lowest = number, total
        if all(fit) or number == rows:
            return best
        number = min(rows, max(number + 1, int(GROWTH * number)))


def _cost(tokens: int, reach: int) -> float:
    return tokens + tokens**2 / reach


def batches(trees: Sequence[Tree]) -> list[list[Tree]]:
    """Batches of trees of similar length, shortest first."""
    result: list[list[Tree]] = []
    for tree in sorted(trees, key=len):
        full = not result or (len(result[-1]) + 1) * len(tree) > BATCH_TOKENS
        if full or len(tree) > SPREAD * len(result[-1][0]):
            result.append([])
        result[-1].append(tree)
    return result


def merge_batches(own: list[list[Tree]], number: int) -> list[list[Tree]]:
    """Merge the shortest batches until `number` are left: this adds the least padding. `number`: at most len(own)."""
    surplus = len(own) - number
    return [sum(own[: surplus + 1], []), *own[surplus + 1 :]]


def split_rows(trees: Sequence[Tree], number: int) -> list[list[int]]:
    """Split the rows into `number` parts with about equally many tokens each; `number`: at most the number of rows.

    Rows keep the order of their trees. A tree is split only where a part ends within it.
    """
    rows = [row for tree in trees for row, _, _ in tree.rows]
    tokens = [len(tree) / len(tree.rows) for tree in trees for _ in tree.rows]
    middles = [end - own / 2 for end, own in zip(accumulate(tokens), tokens, strict=True)]
    starts = [0]
    for part in range(1, number):
        start = bisect_left(middles, part * sum(tokens) / number)
        starts.append(min(max(start, starts[-1] + 1), len(rows) - number + part))
    return [rows[start:end] for start, end in pairwise([*starts, len(rows)])]
