"""Learning: the gradient against one by hand, a bandit, and a state that goes on bit by bit."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch

from verl_ext.heads import PolicyHead, Weights
from verl_ext.heads.learner import Learner
from verl_ext.heads.policy import draw
from verl_ext.mas.noise import derive_seed
from verl_ext.memory import HashingSimilarity

WIDTH = 8
STATES = ["who: 1 + 2", "who: price of x", "who: 1 + 2", "who: more of 3 and 4"]
POOLS = [("add", "look", "end"), ("add", "look", "end"), ("look", "end"), ("add", "look", "end")]
CHOSEN = [0, 2, 1, 1]
ADVANTAGES = torch.tensor([0.7, -0.4, 1.3, 0.0], dtype=torch.float64)


def learner(lr=0.1, entropy=0.0, temperature=1.0, seed=0):
    made = Learner(HashingSimilarity(WIDTH), lr, entropy, temperature)
    with torch.no_grad():
        made.matrix.copy_(torch.from_numpy(np.random.default_rng(seed).normal(size=(WIDTH, WIDTH))))
    return made


def by_hand(made, temperature, entropy, trajectories):
    """Loss and gradient in plain loops: ∂ log π(a)/∂W = e(S)(e(a) − Σ_b π_b e(b))ᵀ / temperature."""
    matrix, encode = made.matrix.detach().numpy(), made.similarity.encode
    loss, gradient = 0.0, np.zeros_like(matrix)
    for state, pool, chosen, advantage in zip(STATES, POOLS, CHOSEN, ADVANTAGES.tolist(), strict=True):
        e, options = encode([state])[0].astype(float), [encode([text])[0].astype(float) for text in pool]
        logits = [e @ matrix @ option / temperature for option in options]
        total = sum(math.exp(logit) for logit in logits)
        pi = [math.exp(logit) / total for logit in logits]
        mean = sum(p * option for p, option in zip(pi, options, strict=True))
        h = -sum(p * math.log(p) for p in pi)
        loss -= advantage * math.log(pi[chosen]) / trajectories + entropy * h / len(STATES)
        gradient -= advantage / trajectories * np.outer(e, options[chosen] - mean) / temperature
        slope = sum(-p * (math.log(p) + h) * option for p, option in zip(pi, options, strict=True))  # ∂H/∂Wᵀe
        gradient -= entropy / len(STATES) * np.outer(e, slope) / temperature
    return loss, gradient


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("entropy", [0.0, 0.3])
def test_the_gradient_is_the_one_by_hand(temperature, entropy):
    made = learner(entropy=entropy, temperature=temperature)
    loss, gradient = by_hand(made, temperature, entropy, trajectories=3)
    found = made.learn(STATES, POOLS, CHOSEN, ADVANTAGES, 3)
    assert found["loss"] == pytest.approx(loss, rel=1e-12)
    assert made.matrix.grad.numpy() == pytest.approx(gradient, rel=1e-9, abs=1e-15)
    assert found["grad_norm"] == pytest.approx(np.linalg.norm(gradient), rel=1e-12)


def test_the_first_step_is_adams():
    made = learner(lr=0.1)
    before, (_, gradient) = made.matrix.detach().numpy().copy(), by_hand(made, 1.0, 0.0, 3)
    made.learn(STATES, POOLS, CHOSEN, ADVANTAGES, 3)
    step = 0.1 * gradient / (np.abs(gradient) + 1e-8)
    assert made.matrix.detach().numpy() == pytest.approx(before - step, rel=1e-7)


def test_entropy_is_that_of_the_whole_distribution():
    made = Learner(HashingSimilarity(WIDTH), 0.1)
    found = made.learn(STATES, POOLS, CHOSEN, ADVANTAGES, 3)
    assert found["entropy"] == pytest.approx((3 * math.log(3) + math.log(2)) / 4, rel=1e-12)


def test_it_learns_which_option_is_good_in_which_state():
    """A bandit with two kinds of states, and an option that no training has seen but that reads like a good one."""
    similarity = HashingSimilarity(64)
    made, head = Learner(similarity, lr=0.1), PolicyHead(similarity)
    right = {"sum": "calculator", "price": "web_search"}
    pool = ("calculator", "web_search", "planning", "terminate")
    for step in range(30):
        head.weights = made.weights
        states = [f"{('sum', 'price')[n % 2]} of task {derive_seed(step, n) % 1000}" for n in range(32)]
        drawn = [
            draw(head.log_probs(state, pool), derive_seed("bandit", step, n), False) for n, state in enumerate(states)
        ]
        good = [float(right[state.split()[0]] == pool[a]) for state, a in zip(states, drawn, strict=True)]
        made.learn(states, [pool] * 32, drawn, torch.tensor(good, dtype=torch.float64) - sum(good) / 32, 32)
    head.weights = made.weights
    for kind, option in right.items():
        probability = dict(zip(pool, np.exp(head.log_probs(f"{kind} of task 77", pool)), strict=True))
        assert probability[option] > 0.9, (kind, probability)
    other = ("calculators", "planned", "terminated")
    assert np.exp(head.log_probs("sum of task 77", other))[0] > 0.8, "a new name is no new parameter"


def test_a_saved_state_goes_on_bit_by_bit():
    one = learner(lr=0.05)
    one.learn(STATES, POOLS, CHOSEN, ADVANTAGES, 3)
    one.version, one.baseline = 1, {"mean_return": 0.25}
    file = io.BytesIO()
    torch.save(one.state(), file)
    file.seek(0)
    other = Learner(HashingSimilarity(WIDTH), lr=0.05)
    other.load(torch.load(file, weights_only=True))
    assert (other.version, other.baseline) == (1, {"mean_return": 0.25})
    for _ in range(3):
        for made in (one, other):
            made.learn(STATES, POOLS, CHOSEN, -ADVANTAGES, 3)
        assert torch.equal(one.matrix, other.matrix)
    fresh = Learner(HashingSimilarity(WIDTH), lr=0.05)
    with torch.no_grad():
        fresh.matrix.copy_(one.matrix)
    for made in (one, fresh):
        made.learn(STATES, POOLS, CHOSEN, ADVANTAGES, 3)
    assert not torch.equal(one.matrix, fresh.matrix), "Adam's moments are a part of the state"


def test_another_encoders_weights_are_refused():
    saved = Learner(HashingSimilarity(16), 0.1).state()
    with pytest.raises(ValueError, match="is of the encoder hashing-16-v1, this run's is hashing-8-v1"):
        learner().load(saved)


def test_published_weights_do_not_change_any_more():
    made = learner()
    seen = made.weights
    before = seen.matrix.copy()
    made.learn(STATES, POOLS, CHOSEN, ADVANTAGES, 3)
    assert isinstance(seen, Weights) and (seen.matrix == before).all() and (made.weights.matrix != before).any()
