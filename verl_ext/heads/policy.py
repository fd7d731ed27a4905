"""PolicyHead: a policy over given texts, a matrix between frozen embeddings of the state and of the options.

It is no head of the language model, and never sees its hidden states: an encoder of its own makes the embeddings.

    π(a | S) = softmax over the options a of e(S)ᵀ W e(a) / temperature

e(S) is the embedding of a prompt's last message, e(a) that of an option's text. Only W is trained. It starts at zero,
which is the uniform policy. Its size does not depend on the number of options, and it also gives a probability to an
option that training has not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from verl_ext.mas.llm import LLM
from verl_ext.mas.types import Completion, Generation
from verl_ext.memory import Similarity

# Pools of options whose embeddings are kept.
POOLS = 8


@dataclass(frozen=True)
class Weights:
    """The trained weights of a head.

    Attributes:
        matrix: W, (width, width) float64.
        version: training steps that it has learned from.
    """

    matrix: np.ndarray
    version: int = 0


def distribution(state: np.ndarray, matrix: np.ndarray, options: np.ndarray, temperature: float) -> np.ndarray:
    """log π of each option.

    Args:
        state: (width,) e(S).
        matrix: (width, width) W.
        options: (n, width) e(a).
        temperature: above 0.

    Returns:
        (n,) float64.
    """
    logits = options @ (state @ matrix) / temperature
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def draw(log_probs: np.ndarray, seed: int, greedy: bool) -> int:
    """Draw one option: a sample of π, or one of the most probable options. It is a function of the seed.

    Ties are broken at random also if `greedy`, so that an untrained head does not always take its first option.

    Args:
        log_probs: (n,).
        seed: from [0, 2⁶³), see `verl_ext.mas.noise`.
        greedy: take a most probable one.
    """
    weights = (log_probs == log_probs.max()).astype(float) if greedy else np.exp(log_probs)
    cumulative = weights.cumsum()
    place = (seed >> 10) / 2**53 * cumulative[-1]
    return int(np.searchsorted(cumulative, place, side="right"))


class PolicyHead(LLM):
    """An `LLM` (verl_ext/mas/llm.py) that can do one thing: choose one of `choices`. It generates no tokens.

    Args:
        similarity: embeds texts; it is not trained.

    Attributes:
        weights: of the last training step; None until they are set.
    """

    def __init__(self, similarity: Similarity):
        self.similarity = similarity
        self.weights: Weights | None = None
        self._pool = lru_cache(POOLS)(self._embedded)

    def _embedded(self, texts: tuple[str, ...]) -> np.ndarray:
        return self.similarity.encode(texts).astype(np.float64)

    def log_probs(self, state: str, options: Sequence[str], temperature: float = 1.0) -> np.ndarray:
        """(n,) log π of the options in this state.

        Raises:
            RuntimeError: the head has no weights.
        """
        if self.weights is None:
            raise RuntimeError("a policy head was asked before it had any weights")
        # Not in a thread: it takes microseconds (a sentence encoder, milliseconds), and what happens on the event loop
        # stays in the order of the calls, as mas.deterministic needs it.
        vector = self.similarity.encode([state])[0].astype(np.float64)
        return distribution(vector, self.weights.matrix, self._pool(tuple(options)), temperature)

    async def complete(
        self, messages: list[dict[str, str]], prompt_ids: list[int], sampling: dict[str, Any], key: tuple[str, ...]
    ) -> Completion:
        """Choose by the content of the last message. At temperature 0 greedily, with log π at temperature 1.

        Raises:
            RuntimeError: the head has no weights.
        """
        options, temperature = sampling["choices"], float(sampling["temperature"])
        log_probs = self.log_probs(messages[-1]["content"], options, temperature or 1.0)
        chosen = draw(log_probs, sampling["seed"], greedy=not temperature)
        version = self.weights.version
        made = Generation([], [], min_version=version, max_version=version, decided=float(log_probs[chosen]))
        return Completion(options[chosen], made)
