"""Which rows share a prompt, and which go through the model together."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

# A batch's longest sequence is at most this many times its shortest: little padding, few batches.
SPREAD = 1.4
# Padded tokens of a batch: its tensors stay in the processor's cache (of 1,024 … 20,000 the fastest).
BATCH_TOKENS = 2048
# Responses of one sequence together are at most as long as its prompt, or this: what the tree mask hides is computed.
SHARED_TOKENS = 256


@dataclass
class Shared:
    """One sequence: a prompt and the responses to it, as (row of the micro-batch, tokens); and their kind."""

    prompt: list[int]
    responses: list[tuple[int, list[int]]]
    kind: int = 0

    def __len__(self) -> int:
        return len(self.prompt) + sum(len(tokens) - 1 for _, tokens in self.responses)


def share(
    prompts: Sequence[list[int]], responses: Sequence[list[int]], kinds: Sequence[int] | None = None
) -> list[Shared]:
    """Rows with equal prompts in one sequence, as far as `SHARED_TOKENS` allows. Prompts and responses: not empty.

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
    """Sequences of similar length together, shortest first."""
    result: list[list[Shared]] = []
    for sequence in sorted(sequences, key=len):
        length = len(sequence)
        full = not result or (len(result[-1]) + 1) * length > BATCH_TOKENS
        if full or length > SPREAD * len(result[-1][0]):
            result.append([])
        result[-1].append(sequence)
    return result


def merge_batches(own: list[list[Shared]], number: int) -> list[list[Shared]]:
    """The batches as `number` of them, at most what there are: the shortest are put together, which pads least."""
    surplus = len(own) - number
    return [sum(own[: surplus + 1], []), *own[surplus + 1 :]]


def split_rows(sequences: Sequence[Shared], number: int) -> list[list[int]]:
    """Rows, one sequence after the other, in `number` parts of about the same tokens; not more parts than rows.

    A sequence stays whole unless it lies across the end of a part.
    """
    rows = [row for sequence in sequences for row, _ in sequence.responses]
    tokens = [len(sequence) / len(sequence.responses) for sequence in sequences for _ in sequence.responses]
    middles = [end - own / 2 for end, own in zip(accumulate(tokens), tokens, strict=True)]
    starts = [0]
    for part in range(1, number):
        start = bisect_left(middles, part * sum(tokens) / number)
        starts.append(min(max(start, starts[-1] + 1), len(rows) - number + part))
    return [rows[start:end] for start, end in pairwise([*starts, len(rows)])]
