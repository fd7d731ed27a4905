"""REINFORCE of decisions: by hand, its gradient against Eq. 5, its baselines, and the agents beside it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.algorithms.test_mhgpo import CONFIG
from verl_ext.algorithms import MHGPO, Puppeteer, TokenRows


def rows(returns, groups=None, decides=None, tokens=3):
    n = len(returns)
    rewards = torch.zeros(n, tokens, dtype=torch.float64)
    rewards[:, -1] = torch.tensor(returns, dtype=torch.float64)
    mask = torch.ones(n, tokens)
    mask[:, 0] = 0
    ids = torch.arange(n)
    return TokenRows(
        reward=rewards[:, -1],
        rewards=rewards,
        mask=mask,
        group=torch.tensor(groups) if groups else ids,
        agent=torch.zeros(n, dtype=torch.int64),
        question=torch.zeros(n, dtype=torch.int64),
        trajectory=ids,
        actions=torch.zeros(n, tokens, dtype=torch.bool),
        decides=torch.tensor(decides if decides is not None else [True] * n),
        outcome=torch.tensor(returns, dtype=torch.float64),
        length=torch.full((n,), tokens),
        failed=torch.zeros(n, dtype=torch.bool),
        position=ids,
    )


def of(given_rows, state=None, **options):
    """The advantage of each row; `state` is what the algorithm keeps between steps."""
    algorithm = Puppeteer(**options)
    algorithm.state.update(state or {})
    found = algorithm.advantages(given_rows, CONFIG)
    if state is not None:
        state.update(algorithm.state)
    assert (found[:, 0] == 0).all() and torch.equal(found[:, 1], found[:, 2]), "on the mask, and the same on all of it"
    return found[:, 1].tolist()


def test_without_a_baseline_it_is_the_return():
    assert of(rows([1.0, -0.5, 0.25]), baseline="none") == [1.0, -0.5, 0.25]


def test_the_groups_mean():
    assert of(rows([1.0, 0.0, 0.5, 0.7], [4, 4, 9, 9])) == pytest.approx([0.5, -0.5, -0.1, 0.1])
    assert of(rows([0.3], [0])) == [0.0], "alone there is nothing to compare with"


def test_the_running_mean_is_of_the_steps_before():
    state = {}
    assert of(rows([1.0, 0.0]), baseline="mean", momentum=0.5, state=state) == [0.5, -0.5]  # the first: its own
    assert state == {"mean_return": 0.5}
    assert of(rows([1.0, 1.0]), baseline="mean", momentum=0.5, state=state) == [0.5, 0.5]
    assert state == {"mean_return": 0.75}
    # Rows that decide nothing are not in it; nor does a step without decisions change it.
    of(rows([9.0, 9.0], [0, 0], [False, False]), baseline="mean", momentum=0.5, state=state)
    assert state == {"mean_return": 0.75}
    assert of(rows([1.0, 0.0], [0, 1], [True, False]), baseline="mean", momentum=0.5, state=state)[0] == 0.25
    assert state == {"mean_return": 0.875}


@pytest.mark.parametrize("baseline", ["none", "mean", "group"])
def test_agents_beside_it_learn_by_mhgpo(baseline):
    mixed = rows([1.0, 0.0, 3.0, 1.0, 2.0], [0, 0, 1, 1, 1], [True, True, False, False, False])
    expected = MHGPO().advantages(mixed, CONFIG)[2:, 1].tolist()
    assert of(mixed, baseline=baseline)[2:] == pytest.approx(expected)
    assert expected == pytest.approx([1.0, -1.0, 0.0], abs=1e-5)


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=8), st.integers(0, 10**6))
def test_the_gradient_is_eq_5(returns, seed):
    """∇ of −Σ A log π over decisions, with A = R and ratio 1, is that of −1/N Σ_n Σ_t R ∇ log π."""
    logits = torch.randn(len(returns), 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    logits.requires_grad_()
    chosen = torch.arange(len(returns)) % 4
    log_prob = logits.log_softmax(-1)[torch.arange(len(returns)), chosen]
    naive = -(torch.tensor(returns, dtype=torch.float64) * log_prob).mean()
    (expected,) = torch.autograd.grad(naive, logits, retain_graph=True)
    advantage = torch.tensor(of(rows(returns), baseline="none"), dtype=torch.float64)
    ratio = (log_prob - log_prob.detach()).exp()
    (found,) = torch.autograd.grad(-(advantage * ratio).mean(), logits)
    assert torch.allclose(found, expected, atol=1e-6)


def test_a_return_that_is_no_number():
    with pytest.raises(ValueError, match="1 of 2 rewards are not finite"):
        of(rows([1.0, float("nan")]))
