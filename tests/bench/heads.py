"""(r) A policy head: a decision among few and among many options, over the bare matrix product, and a training step.

One thread, CPU time. The state's embedding (a text of 2,000 characters) is included, those of the pool are kept: the
first decision of a pool pays for them.
"""

from __future__ import annotations

import random
import time

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from tests.bench.memory import milliseconds
from verl_ext.heads import PolicyHead, Weights
from verl_ext.heads.learner import Learner
from verl_ext.heads.policy import draw
from verl_ext.memory import HashingSimilarity

POOLS, DECISIONS, CHARACTERS = (9, 10_000), 512, 2000


def text(rng: random.Random, characters: int) -> str:
    """Words of random letters."""
    return "".join(rng.choices("abcdefghij     ", k=characters))


def run(pools: tuple[int, ...] = POOLS, decisions: int = DECISIONS) -> list[str]:
    """Two lines per size of the pool; medians."""
    rng, similarity = random.Random(0), HashingSimilarity()
    head = PolicyHead(similarity)
    head.weights = Weights(np.random.default_rng(0).normal(size=(similarity.width, similarity.width)))
    lines = []
    with threadpool_limits(1):
        for size in pools:
            pool = tuple(f"agent {number} {text(rng, 12)}" for number in range(size))
            states = [text(rng, CHARACTERS) for _ in range(decisions)]
            begun = time.process_time()
            head.log_probs(states[0], pool)
            first = 1e3 * (time.process_time() - begun)
            ones = milliseconds(lambda n, p=pool, s=states: draw(head.log_probs(s[n % len(s)], p), n, False), 50)[1]
            matrix, vector = similarity.encode(pool).astype(float), np.ones(similarity.width)
            bare = milliseconds(lambda _, m=matrix, v=vector: m @ v, 50)[1]
            told = f"{ones:.2f} ms a decision, the first {first:.0f} ms; the product alone {bare:.3f} ms"
            lines.append(f"  {size:>6,} options: {told}")
            learner = Learner(similarity, 0.1)
            chosen, gains = [n % size for n in range(decisions)], torch.ones(decisions, dtype=torch.float64)
            step = milliseconds(
                lambda _, a=learner, b=states, c=pool, d=chosen, e=gains: a.learn(b, [c] * len(b), d, e, len(b)), 3
            )[1]
            lines.append(f"  {size:>6,} options: {step:.0f} ms to learn from a step's {decisions} decisions")
    return lines
