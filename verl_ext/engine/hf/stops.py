"""Ends requests at stop strings such as </tool_call>, however the tokenizer splits them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from verl_ext.engine.hf.admission import Job

# Tokens without text (special ones) that may stand among those of a stop string.
SLACK = 8
# What decoders write for bytes that are no character: the token may hold a part of any character.
BROKEN = "\ufffd"


class StopStrings:
    """Finds the requests whose output has just reached one of their stop strings.

    A stop string can only be complete at a token that holds its last character. Those tokens are looked up for all
    rows at once; only where one was sampled is text decoded, and no more than the string's length.

    Args:
        decode: token ids -> text.
        vocab_size: of the model; ids that the tokenizer does not know have no text.
    """

    def __init__(self, decode: Callable[[list[int]], str], vocab_size: int, device: torch.device):
        self._decode = decode
        self._vocab_size, self._device = vocab_size, device
        self._texts: list[str] | None = None
        self._characters: set[str] = set()
        self._closing = torch.zeros(vocab_size, dtype=torch.bool, device=device)

    def learn(self, strings: Sequence[str]) -> None:
        """Prepare for these stop strings; the first ones cost a decoding of the whole vocabulary."""
        new = {string[-1] for string in strings} - self._characters
        if not new:
            return
        if self._texts is None:
            self._texts = [self._decode([token]) for token in range(self._vocab_size)]
        self._characters |= new
        wanted = (*self._characters, BROKEN)
        # Decoders leave out a space at the beginning of a text: any token may have one behind others.
        closing = [" " in wanted or any(character in text for character in wanted) for text in self._texts]
        self._closing = torch.tensor(closing, device=self._device)

    def reached(
        self, jobs: Sequence[Job], current: torch.Tensor, tokens: torch.Tensor, count: torch.Tensor
    ) -> list[int]:
        """Rows whose last token completes a stop string.

        Args:
            jobs: B, in row order.
            current: (B,) the tokens just sampled. tokens: (B, ≥ count) all of each output. count: (B,) how many.
        """
        found = []
        for row in self._closing[current].nonzero()[:, 0].tolist():
            strings = jobs[row].request.params.stop
            if strings:
                end = int(count[row])
                window = max(len(string.encode()) for string in strings) + SLACK
                text = self._decode(tokens[row, max(0, end - window) : end].tolist())
                if any(string in text for string in strings):
                    found.append(row)
        return found
