"""From logits to tokens, for a whole batch at once: noise by counter, inverse CDF, top-k and top-p.

Noise is a pure function of (request seed, absolute position). So a token does not depend on the other requests, on the
time of admission, or on whether the request was aborted and resumed with `prompt + tokens so far`.
"""

from __future__ import annotations

import torch

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def _signed(value: int) -> int:
    """The int64 with the same 64 bits (torch has no arithmetic on uint64; int64 wraps around)."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift of an int64 tensor (torch's >> keeps the sign)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(z: torch.Tensor) -> torch.Tensor:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators")."""
    z = (z ^ _shift(z, 30)) * _signed(_MIX[0])
    z = (z ^ _shift(z, 27)) * _signed(_MIX[1])
    return z ^ _shift(z, 31)


def mix_seeds(seeds: list[int]) -> torch.Tensor:
    """(B,) int64 streams of the seeds; mixed, so that neighbouring seeds do not give shifted copies of one stream."""
    return _mix(torch.tensor([_signed(seed) for seed in seeds], dtype=torch.int64) + _signed(_GOLDEN))


def uniform_noise(streams: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """u(stream, position) in [0, 1), float32 with 24 random bits; int64 inputs of one shape, or broadcast.

    The positions are the counter of a splitmix64 generator started at `streams` (see `mix_seeds`).
    """
    return _shift(_mix(streams + (positions + 1) * _signed(_GOLDEN)), 40).to(torch.float32) * 2.0**-24


def keep_mask(probs: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Which tokens top-k and then top-p leave in.

    Args:
        probs: (B, V), each row sums to 1.
        top_k: (B,) int64, -1 = off.
        top_p: (B,) float, 1.0 = off. Kept is the smallest set of most probable tokens whose mass, after top-k and
            renormalised, reaches top_p: the same order and definition as in vLLM and transformers.

    Returns:
        (B, V) bool, at least one True per row. Among equal probabilities the lower token id wins.
    """
    size = probs.shape[-1]
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(size, device=probs.device)
    keep = (rank < top_k[:, None]) | (top_k[:, None] < 1)  # (B, V), in sorted order
    ordered = ordered * keep
    before = ordered.cumsum(-1) - ordered
    keep &= (before < top_p[:, None] * ordered.sum(-1, keepdim=True)) | (top_p[:, None] >= 1)
    keep[:, 0] = True
    return torch.zeros_like(keep).scatter_(-1, order, keep)


def inverse_cdf(probs: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The token whose interval of the cumulative distribution holds `noise`; probs (B, V) need not sum to 1.

    Tokens of probability 0 are never drawn: the first index whose cumulative sum EXCEEDS the target is taken, and the
    target stays below the total even where rounding would lift it there.
    """
    cumulative = probs.cumsum(-1)
    total = cumulative[:, -1:]
    target = torch.minimum(noise[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    tokens = torch.searchsorted(cumulative, target, right=True)[:, 0]  # (B,)
    return tokens.clamp(max=probs.shape[-1] - 1)  # beyond the end only for nan


def sample(
    logits: torch.Tensor,
    noise: torch.Tensor | None,
    temperature: torch.Tensor | None,
    greedy: torch.Tensor | None,
    filtered: torch.Tensor | None,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    allowed: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token per row.

    Args:
        logits: (B, V) of any float type; computed on in float32.
        noise: (B,) in [0, 1); None = all rows are greedy.
        temperature: (B,) divisors (1 for greedy rows), or None when all are 1.
        greedy: (B,) bool, rows that take the most probable token; None when there is none.
        filtered: (F,) indices of the rows that use top-k or top-p; None when there is none. Only they are sorted.
        top_k, top_p: (B,), see `keep_mask`.
        allowed: (A,) indices of the rows to which only some tokens are open, and which, (A, V) bool; None: no row.

    Returns:
        tokens (B,) int64 and their log-probs (B,) float32 = log_softmax(logits / temperature), over all tokens that are
        open to the row.
        A row whose logits hold nan gets the log-prob nan.
    """
    logits = logits.float()
    if allowed is not None:
        rows, open_to = allowed
        logits = logits.index_copy(0, rows, logits[rows].masked_fill(~open_to, -torch.inf))
    if temperature is not None:
        logits = logits / temperature[:, None]
    log_probs = torch.log_softmax(logits, dim=-1)
    if noise is None:
        tokens = log_probs.argmax(-1)
    else:
        probs = log_probs.exp()
        if filtered is not None:
            rows = probs[filtered]
            probs[filtered] = rows * keep_mask(rows, top_k[filtered], top_p[filtered])
        tokens = inverse_cdf(probs, noise)
        if greedy is not None:
            tokens = torch.where(greedy, log_probs.argmax(-1), tokens)
    return tokens, log_probs.gather(1, tokens[:, None])[:, 0]
