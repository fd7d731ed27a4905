"""Groups rows into trees of common prefixes, and trees into batches. Plain lists, no tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
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
# A block of attention (tree_attention.py) takes as long as so many pairs of tokens more (SmolLM2-135M, float32).
BLOCK = 4096
# End of a subtree that still grows.
OPEN = sys.maxsize


class Stretches(list[tuple[int, int, int]]):
    """A tree's stretches between forks, which cover its columns: (first column, end, end of what is below)."""

    @classmethod
    def of(cls, ends: Sequence[int]) -> Stretches:
        """`ends`: per column the end (exclusive) of its descendants, which follow it."""
        starts = [column for column in range(len(ends)) if not column or ends[column] != ends[column - 1]]
        return cls((first, end, max(end, ends[first])) for first, end in pairwise([*starts, len(ends)]))

    @property
    def ends(self) -> list[int]:
        """As given to `of`; of padding, its own end."""
        return [below for first, end, below in self for _ in range(first, end)]

    @property
    def forks(self) -> Iterator[tuple[slice, slice]]:
        """The columns of each stretch that has others below it, and the columns of those."""
        return ((slice(first, end), slice(end, below)) for first, end, below in self if end < below)

    @property
    def cost(self) -> float:
        """Of attention block by block, in pairs of tokens."""
        pairs = sum((end - first) * (below - (first + end) / 2) for first, end, below in self)
        return pairs + BLOCK * (len(self) + sum(1 for _ in self.forks))


@dataclass
class Tree:
    """Rows of which every prefix that some have in common stands once.

    Tokens stand depth first: a token's descendants follow it, so it is seen from its own column up to its end.

    Attributes:
        tokens, positions: per column the token, and its place in its row.
        ends: per column the end (exclusive) of its descendants.
        rows: (row of the micro-batch, columns that predict the response, response) of each row.
        kind: of its rows; see `share`.
        known: of each row, how many of its tokens were there.
        seen: pairs of a token and one that it sees.
    """

    kind: int = 0
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    rows: list[tuple[int, list[int], list[int]]] = field(default_factory=list)
    known: list[int] = field(default_factory=list)
    seen: int = 0
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
        self.known.append(known)
        self.seen += _pairs(known, len(new))

    def cost(self, reach: int, known: int = 0, new: int = 0) -> float:
        """In tokens; with another row, if `new` tokens of it are not there yet, and `known` ones are.

        `reach`: see `share`.
        """
        tokens, rows, seen = len(self) + new, len(self.rows) + (new > 0), self.seen + _pairs(known, new)
        pairs = seen if rows == 1 else min(tokens**2, seen + 2 * BLOCK * rows)
        return tokens + pairs / reach


def share(
    prompts: Sequence[list[int]],
    responses: Sequence[list[int]],
    kinds: Sequence[int] | None = None,
    reach: int = 1024,
) -> list[Tree]:
    """Put rows into trees, as far as that saves time. No prompt and no response may be empty.

    Attention is computed between all N² pairs of a tree's tokens, under a mask, or between those that see each other,
    block by block (tree_attention.py), and each block takes time, too. In the order of their tokens each row has its
    longest common prefix with a neighbour; it joins that one's tree if it costs less there than alone. A tree as large
    as a batch takes only rows that are mostly there: its logits are in memory at once.

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
        new = len(read[row]) - known
        if (
            not known
            or trees[-1].cost(reach, known, new) - trees[-1].cost(reach) >= Tree().cost(reach, 0, len(read[row]))
            or (known < new and len(trees[-1]) + new > BATCH_TOKENS)
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
        costs = [sum(tree.cost(reach) for tree in part) for part in parts]
        fit = [once(part) for part in parts]
        total = sum(cost if kept else TWICE * cost for cost, kept in zip(costs, fit, strict=True))
        possible = number == rows or all(kept or twice(part) for part, kept in zip(parts, fit, strict=True))
        if possible and total < lowest:
            best, lowest = number, total
        if all(fit) or number == rows:
            return best
        number = min(rows, max(number + 1, int(GROWTH * number)))


def _pairs(known: int, new: int) -> int:
    """Of a token and one that it sees, of `new` tokens in a row after `known` ones."""
    return new * known + new * (new + 1) // 2


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

    Rows keep the order of their trees. Within a third of its size, a part ends where the next one has fewest tokens to
    compute again.
    """
    rows = [row for tree in trees for row, _, _ in tree.rows]
    known = [tokens for tree in trees for tokens in tree.known]
    before = [0.0, *accumulate(len(tree) / len(tree.rows) for tree in trees for _ in tree.rows)]
    size, starts = before[-1] / number, [0]
    for part in range(1, number):
        possible = range(starts[-1] + 1, len(rows) - number + part + 1)
        away = {row: abs(before[row] - part * size) for row in possible}
        near = [row for row in possible if away[row] <= size / 3]
        starts.append(min(near, key=lambda row: away[row] + known[row]) if near else min(away, key=away.__getitem__))
    return [rows[start:end] for start, end in pairwise([*starts, len(rows)])]
