"""Noise, filters and the inverse CDF, against naive references."""

from __future__ import annotations

import pytest
import torch

from verl_ext.engine.hf.sampler import inverse_cdf, keep_mask, mix_seeds, sample, uniform_noise

GRID = 20_000  # noise values (i + 1/2) / GRID: frequencies are then exact to 1 / GRID


def naive_keep(probs: list[float], top_k: int, top_p: float) -> list[bool]:
    """Most probable first (lower id wins a tie); at most top_k; stop once their renormalised mass reaches top_p."""
    order = sorted(range(len(probs)), key=lambda token: (-probs[token], token))
    order = order[:top_k] if top_k > 0 else order
    mass, total, kept = 0.0, sum(probs[token] for token in order), set()
    for token in order:
        if top_p < 1 and kept and mass >= top_p * total - 1e-9:
            break
        kept.add(token)
        mass += probs[token]
    return [token in kept for token in range(len(probs))]


def splitmix64(state: int) -> int:
    """Reference in Python's integers."""
    mask = (1 << 64) - 1
    z = state & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_noise_is_splitmix64():
    golden = 0x9E3779B97F4A7C15
    seeds, positions = [0, 1, 7, -3, 2**63 - 1, 2**64 - 1], [0, 1, 1000, 2**31]
    got = uniform_noise(mix_seeds(seeds)[:, None], torch.tensor(positions))
    for row, seed in zip(got, seeds, strict=True):
        for value, position in zip(row.tolist(), positions, strict=True):
            want = splitmix64(splitmix64(seed + golden) + (position + 1) * golden) >> 40
            assert value == want / 2**24


def test_noise_is_uniform_and_neighbours_are_independent():
    """1000 neighbouring seeds x 200 positions: chi-square of 20 x 20 cells of neighbouring pairs, both directions."""
    noise = uniform_noise(mix_seeds(list(range(1000)))[:, None], torch.arange(200))
    assert 0 <= noise.min() and noise.max() < 1
    for first, second in ((noise[:, :-1], noise[:, 1:]), (noise[:-1], noise[1:])):
        cells = (first * 20).long() * 20 + (second * 20).long()
        counts = torch.bincount(cells.flatten(), minlength=400).float()
        expected = counts.sum() / 400
        chi_square = ((counts - expected) ** 2 / expected).sum().item()
        assert abs(chi_square - 399) < 5 * (2 * 399) ** 0.5


@pytest.mark.parametrize(
    ("top_k", "top_p"), [(-1, 1.0), (1, 1.0), (3, 1.0), (-1, 0.5), (-1, 1e-6), (4, 0.7), (99, 0.99)]
)
def test_distribution_is_exactly_the_filtered_softmax(top_k, top_p):
    torch.manual_seed(0)
    logits = torch.randn(12) * 2
    logits[7] = logits[3]  # a tie
    probs = logits.softmax(-1)
    keep = torch.tensor(naive_keep(probs.tolist(), top_k, top_p))
    want = probs * keep / (probs * keep).sum()
    filtered = None if (top_k, top_p) == (-1, 1.0) else torch.arange(GRID)
    tokens, log_probs = sample(
        logits.expand(GRID, -1),
        (torch.arange(GRID) + 0.5) / GRID,
        temperature=None,
        greedy=None,
        filtered=filtered,
        top_k=torch.full((GRID,), top_k),
        top_p=torch.full((GRID,), top_p),
    )
    counts = torch.bincount(tokens, minlength=12)
    assert (counts / GRID - want).abs().max() <= 1.5 / GRID
    assert (counts[~keep] == 0).all()
    assert torch.allclose(log_probs, logits.log_softmax(-1)[tokens])  # over ALL tokens, not renormalised


def test_rows_keep_their_own_parameters():
    """One mixed batch equals row by row: temperatures, greedy rows, filtered and unfiltered rows."""
    torch.manual_seed(1)
    logits, noise = torch.randn(6, 50) * 3, torch.rand(6)
    temperature = torch.tensor([1.0, 0.5, 1.0, 2.0, 1.0, 1.0])
    greedy = torch.tensor([False, False, True, False, False, True])
    top_k, top_p = torch.tensor([-1, 5, 3, -1, 2, -1]), torch.tensor([1.0, 1.0, 0.5, 0.8, 0.9, 1.0])
    tokens, log_probs = sample(logits, noise, temperature, greedy, torch.tensor([1, 3, 4]), top_k, top_p)
    for row in range(6):
        scaled = (logits[row] / temperature[row]).log_softmax(-1)
        probs = scaled.exp()
        keep = torch.tensor(naive_keep(probs.tolist(), int(top_k[row]), float(top_p[row])))
        want = scaled.argmax() if greedy[row] else inverse_cdf((probs * keep)[None], noise[row : row + 1])[0]
        assert tokens[row] == want and torch.isclose(log_probs[row], scaled[want])


def test_tokens_of_probability_zero_are_never_drawn():
    probs = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]])
    noise = torch.tensor([0.0, 0.25, 0.5, 0.75, 1 - 2.0**-24])
    assert inverse_cdf(probs.expand(5, -1), noise).tolist() == [1, 1, 3, 3, 3]


def test_keep_mask_always_keeps_the_most_probable_token():
    probs = torch.tensor([[0.2, 0.6, 0.2]])
    assert keep_mask(probs, torch.tensor([-1]), torch.tensor([1e-9])).tolist() == [[False, True, False]]
