"""Seeds of sampling noise: a pure function of a call's identity, never of scheduling."""

from __future__ import annotations

import hashlib

from verl_ext.mas.types import CallId, Stream


def derive_seed(*parts: object) -> int:
    """Hash `parts` to a seed in [0, 2**63). Stable across processes, machines and Python versions."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def call_seed(question_seed: int, stream: Stream, call: CallId) -> int:
    """Seed of one call: (question seed, stream, call), where the question seed covers (seed, step, data-set index)."""
    return derive_seed(question_seed, *stream.path, call)
