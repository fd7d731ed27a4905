"""MHGPO's advantages: masks by position, invariances, reduction to verl's GRPO; and the weights of Eq. 6."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

from verl_ext.algorithms import TokenRows, make_algorithm
from verl_ext.algorithms.mhgpo import MHGPO, agent_weights

CONFIG = {"norm_adv_by_std_in_grpo": True}
advantages = MHGPO().advantages


def rows(rewards, lengths, groups, width=None):
    """Calls of `lengths` tokens, R on the last of them."""
    n, width = len(rewards), width or max(lengths, default=1)
    tokens, mask = torch.zeros(n, width), torch.zeros(n, width, dtype=torch.int64)
    for i, (reward, length) in enumerate(zip(rewards, lengths, strict=True)):
        tokens[i, length - 1] = reward
        mask[i, :length] = 1
    ids = torch.tensor(groups, dtype=torch.int64)
    outcome, length = torch.tensor(rewards, dtype=torch.float64), torch.tensor(lengths)
    return TokenRows(
        *(outcome, ids, ids, ids, torch.arange(n), ids < 0, outcome, length, ids < 0, ids),
        rewards=tokens,
        mask=mask,
        actions=mask > 1,
    )


calls = st.tuples(st.floats(-2, 2).map(lambda x: round(x, 2)), st.integers(1, 6), st.integers(0, 3))
batches = st.lists(calls, min_size=1, max_size=20)
questions = st.lists(st.tuples(st.floats(-2, 2), st.integers(1, 5)), min_size=2, max_size=5)


def test_the_advantage_stands_on_every_response_token_and_nowhere_else():
    batch = rows([1.0, 0.0, 0.5], [2, 4, 1], [0, 0, 1])
    half = 0.5 / (0.5**0.5 + 1e-6)
    expected = [[half, half, 0, 0], [-half] * 4, [0.0] * 4]
    assert advantages(batch, CONFIG).tolist() == [pytest.approx(row) for row in expected]
    assert advantages(batch, CONFIG).dtype == torch.float32


def test_the_other_reading_has_the_advantage_where_the_reward_stands():
    """R^t below Eq. 5; an observation behind the last output trains in neither reading."""
    batch = rows([1.0, 0.0], [4, 2], [0, 0])
    batch.mask = torch.tensor([[1, 0, 1, 0], [1, 1, 0, 0]])
    half = 0.5 / (0.5**0.5 + 1e-6)
    expected = [pytest.approx([0, 0, half, 0]), pytest.approx([0, -half, 0, 0])]
    assert make_algorithm("mhgpo", {"tokens": "last"}).advantages(batch, CONFIG).tolist() == expected
    with pytest.raises(ValueError, match="mas.advantage.tokens"):
        make_algorithm("mhgpo", {"tokens": "first"})


def test_a_token_mask_takes_tokens_out_of_training_but_not_the_reward_out_of_the_group():
    batch = rows([1.0, 0.0], [3, 3], [0, 0])
    batch.mask = torch.tensor([[1, 0, 0], [0, 1, 1]])  # the first row's R sits on a masked token
    half = 0.5 / (0.5**0.5 + 1e-6)
    assert advantages(batch, CONFIG).tolist() == [pytest.approx([half, 0, 0]), pytest.approx([0, -half, -half])]


def test_without_division_by_the_standard_deviation():
    batch = rows([1.0, 0.0], [1, 1], [0, 0])
    assert advantages(batch, {"norm_adv_by_std_in_grpo": False}).tolist() == [[0.5], [-0.5]]
    assert torch.equal(advantages(batch, None), advantages(batch, CONFIG))


@given(batches, st.randoms(use_true_random=False), st.integers(0, 5))
def test_invariant_to_order_padding_and_names(batch, random, padding):
    order = list(range(len(batch)))
    random.shuffle(order)
    reward, length, group = zip(*batch, strict=True)
    plain = advantages(rows(reward, length, group), CONFIG)
    wide = max(length) + padding
    moved = [(reward[i], length[i], 1000 - 7 * group[i]) for i in order]
    other = advantages(rows(*zip(*moved, strict=True), width=wide), CONFIG)
    assert torch.allclose(other[:, : max(length)], plain[order], atol=1e-5)
    assert not other[:, max(length) :].any()


@given(st.lists(questions, min_size=1, max_size=5))
def test_reduces_to_verls_grpo_when_every_group_is_one_question(questions):
    members = [(reward, length, q) for q, calls in enumerate(questions) for reward, length in calls]
    batch = rows(*zip(*members, strict=True))
    theirs, _ = compute_grpo_outcome_advantage(batch.rewards, batch.mask, np.array(batch.group.tolist()))
    spread = [max(r for r, _ in calls) - min(r for r, _ in calls) for calls in questions]
    ours = advantages(batch, CONFIG)
    spread = torch.tensor([spread[q] for *_, q in members])
    assert torch.allclose(ours[spread > 1e-2], theirs[spread > 1e-2], atol=1e-3, rtol=1e-3)
    # verl, in single precision, divides the rounding error of the mean by epsilon: three times 1.5767095 give 0.104.
    assert not ours[spread == 0].any()


def test_reduces_to_verls_grpo_to_five_digits():
    torch.manual_seed(0)
    group = torch.arange(64).repeat_interleave(4)
    batch = rows(torch.rand(256).tolist(), torch.randint(1, 9, (256,)).tolist(), group.tolist())
    theirs, _ = compute_grpo_outcome_advantage(batch.rewards, batch.mask, np.array(group.tolist()))
    assert torch.allclose(advantages(batch, CONFIG), theirs, atol=1e-5, rtol=1e-5)


# --- the weights of Eq. 6 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "question", "weights"),
    [
        # Agents with 4, 1 and 1 rollouts: N = 6, n = 3; w = 6/(3·4) and 6/(3·1).
        ([7, 7, 2, 7, 7, 5], None, [0.5, 0.5, 2.0, 0.5, 0.5, 2.0]),
        # Question 0: agents with 2 and 1 rollouts; question 1: one agent with 1 rollout. N = 4, two questions.
        ([0, 0, 1, 0], [9, 9, 9, 3], [0.5, 0.5, 1.0, 2.0]),
        # Equal numbers of rollouts leave the plain mean.
        ([0, 1, 2] * 4, None, [1.0] * 12),
        ([0, 1, 2] * 4, [0, 0, 0, 1, 1, 1] * 2, [1.0] * 12),
    ],
)
def test_weights_by_hand(agent, question, weights):
    assert agent_weights(torch.tensor(agent), question and torch.tensor(question)).tolist() == weights


def test_no_rows_no_weights():
    nothing = torch.zeros(0, dtype=torch.int64)
    assert agent_weights(nothing).shape == agent_weights(nothing, nothing).shape == (0,)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30), st.booleans())
def test_weighted_means_are_means_of_means(members, per_question):
    agent = torch.tensor([a for a, _ in members])
    question = torch.tensor([q for _, q in members])
    value = torch.arange(len(members), dtype=torch.float64).square()
    if not per_question:
        question = torch.zeros_like(agent)
    weights = agent_weights(agent, question if per_question else None)
    means = []
    for q in question.unique():
        here = question == q
        means.append(torch.stack([value[here & (agent == k)].mean() for k in agent[here].unique()]).mean())
    assert (weights * value).mean().item() == pytest.approx(torch.stack(means).mean().item())
    assert weights.mean().item() == pytest.approx(1.0) and (weights > 0).all()
