"""Groups rows into sequences that share a prompt, and sequences into batches. Plain lists, no tensors."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

# A batch's longest sequence is at most this many times its shortest: little padding, few batches.
SPREAD = 1.4
# Padded tokens of a batch: its tensors stay in the processor's cache (of 1,024 … 20,000 the fastest).
BATCH_TOKENS = 2048
# The responses of one sequence together have at most the length of its prompt, or this many tokens: attention scores
# that the tree mask hides are computed all the same.
SHARED_TOKENS = 256


@dataclass
class Shared:
    """One sequence: a prompt and the responses to it.

    Attributes:
        responses: (row of the micro-batch, tokens) of each.
        kind: of its rows; see `share`.
    """

    prompt: list[int]
    responses: list[tuple[int, list[int]]]
    kind: int = 0

    def __len__(self) -> int:
        return len(self.prompt) + sum(len(tokens) - 1 for _, tokens in self.responses)


def share(
    prompts: Sequence[list[int]], responses: Sequence[list[int]], kinds: Sequence[int] | None = None
) -> list[Shared]:
    """Put rows with equal prompts into one sequence, as far as `SHARED_TOKENS` allows. None may be empty.

    Args:
        kinds: of each row; only rows of one kind share. None: all are of kind 0.
    """
    assert all(prompts) and all(responses), "a row has no prompt or no response"
    found: list[Shared] = []
    latest: dict[tuple[int, ...], Shared] = {}
    kinds = [0] * len(prompts) if kinds is None else kinds
    for row, (prompt, response, kind) in enumerate(zip(prompts, responses, kinds, strict=True)):
        key = (kind, *prompt)
        sequence = latest.get(key)
        room = max(len(prompt), SHARED_TOKENS) + len(prompt)
        if sequence is None or len(sequence) + len(response) - 1 > room:
            sequence = latest[key] = Shared(prompt, [], kind)
            found.append(sequence)
        sequence.responses.append((row, response))
    return found


def batches(sequences: Sequence[Shared]) -> list[list[Shared]]:
    """Batches of sequences of similar length, shortest first."""
    result: list[list[Shared]] = []
    for sequence in sorted(sequences, key=len):
        length = len(sequence)
        full = not result or (len(result[-1]) + 1) * length > BATCH_TOKENS
        if full or length > SPREAD * len(result[-1][0]):
            result.append([])
        result[-1].append(sequence)
    return result


def merge_batches(own: list[list[Shared]], number: int) -> list[list[Shared]]:
    """Merge the shortest batches until `number` are left: this adds the least padding. `number`: at most len(own)."""
    surplus = len(own) - number
    return [sum(own[: surplus + 1], []), *own[surplus + 1 :]]


def split_rows(sequences: Sequence[Shared], number: int) -> list[list[int]]:
    """Split the rows into `number` parts with about equally many tokens each; `number`: at most the number of rows.

    Rows keep the order of their sequences. A sequence is split only where a part ends within it.
    """
    rows = [row for sequence in sequences for row, _ in sequence.responses]
    tokens = [len(sequence) / len(sequence.responses) for sequence in sequences for _ in sequence.responses]
    middles = [end - own / 2 for end, own in zip(accumulate(tokens), tokens, strict=True)]
    starts = [0]
    for part in range(1, number):
        start = bisect_left(middles, part * sum(tokens) / number)
        starts.append(min(max(start, starts[-1] + 1), len(rows) - number + part))
    return [rows[start:end] for start, end in pairwise([*starts, len(rows)])]
