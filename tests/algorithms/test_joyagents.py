"""JoyAgents-R1: which nodes are kept, by hand and against a naive reference; advantages are GRPO's at each node."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.algorithms.test_mhgpo import CONFIG, rows
from verl_ext.algorithms import MHGPO, JoyAgents, Rows
from verl_ext.algorithms.groups import group_variance
from verl_ext.algorithms.joyagents import efficiency


def kept(rewards, groups, questions, positions=None, **options):
    n = len(groups)
    reward, blank = torch.as_tensor(rewards), torch.zeros(n, dtype=torch.int64)
    numbers = (torch.tensor(groups), blank, torch.tensor(questions), blank, blank > 0)
    others = {"outcome": reward, "length": blank, "failed": blank > 0}
    position = blank if positions is None else torch.tensor(positions)
    return JoyAgents(**options).select(Rows(reward, *numbers, **others, position=position)).tolist()


#          node 0: var 0.25   node 1: var 1   node 2: var 0   node 3: var 0.25
REWARDS = [0.0, 1.0, -1.0, 1.0, 3.0, 3.0, 2.0, 3.0]
NODES = [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    "k,expected",
    [
        (1, [False, False, True, True, False, False, False, False]),
        (2, [True, True, True, True, False, False, False, False]),  # of the two with 0.25 the first
        (3, [True, True, True, True, False, False, True, True]),
        (9, [True, True, True, True, False, False, True, True]),  # without variance there is nothing to learn
        (0, [True] * 8),
    ],
)
def test_top_k_by_hand(k, expected):
    assert kept(REWARDS, NODES, [0] * 8, top_k=k) == expected


def test_per_question_and_per_batch():
    questions = [0, 0, 0, 0, 1, 1, 1, 1]
    assert kept(REWARDS, NODES, questions, top_k=1) == [False, False, True, True, False, False, True, True]
    assert kept(REWARDS, NODES, questions, top_k=1, per="batch") == [True] * 4 + [False] * 4


def test_the_order_of_rows_settles_ties_not_the_names_of_groups():
    assert kept([0.0, 1.0, 0.0, 1.0], [9, 9, 4, 4], [0] * 4, top_k=1) == [True, True, False, False]


def test_the_earlier_node_is_kept_although_rows_of_the_later_one_come_first():
    """Where the base trajectory has failed, the rows of its forks come first in the order of their names."""
    rewards, positions = [0.0, 1.0, 0.0, 1.0], [2, 2, 1, 1]
    assert kept(rewards, [0, 0, 1, 1], [0] * 4, positions, top_k=1) == [False, False, True, True]
    assert kept(rewards, [0, 0, 1, 1], [0, 0, 1, 1], positions, top_k=1, per="batch") == [True] * 4


def test_a_single_sample_has_no_variance_and_population_variance_compares_sizes():
    assert kept([5.0, 0.0, 1.0], [0, 1, 1], [0] * 3, top_k=2) == [False, True, True]
    variance, _ = group_variance(torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0]), torch.tensor([0, 0, 1, 1, 1]))
    assert variance.tolist() == pytest.approx([0.25, 2 / 9])


def test_equal_rewards_have_exactly_no_variance():
    third = [1 / 3] * 7  # whose mean in floating point need not be 1/3
    assert kept(third, [0] * 7, [0] * 7, top_k=1) == [False] * 7


def test_the_order_of_a_nodes_rewards_changes_no_bit_of_its_variance():
    """Summed as they come, these five have two variances, and the first of two such nodes would not be the first."""
    values = [1.8, 0.8, 1.6, 0.4, 2.0]
    orders = list(itertools.permutations(values))
    rewards = torch.tensor(orders, dtype=torch.float64).flatten()
    nodes = torch.arange(len(orders)).repeat_interleave(5)
    variance, _ = group_variance(rewards, nodes)
    assert len(set(variance.tolist())) == 1
    for order in orders:
        pair = torch.tensor([*order, *values], dtype=torch.float64)
        assert kept(pair, [1] * 5 + [0] * 5, [0] * 10, top_k=1) == [True] * 5 + [False] * 5


cases = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 1.0, 1 / 3, 1.8, 0.8, 0.4]), st.integers(0, 6)), min_size=1, max_size=40
)  # (reward, node); a node's question is node % 3


def exact_variance(values: list[float]) -> Fraction:
    exact = [Fraction(torch.tensor(value).item()) for value in values]  # as float32 has them
    mean = sum(exact) / len(exact)
    return sum((value - mean) ** 2 for value in exact) / len(exact)


@given(cases, st.integers(1, 4), st.sampled_from(["question", "batch"]))
def test_equals_a_naive_reference(case, k, per):
    rewards, nodes = [r for r, _ in case], [n for _, n in case]
    questions = [n % 3 for n in nodes]
    variance = {n: exact_variance([r for r, m in case if m == n]) for n in set(nodes)}
    chosen = set()
    for scope in sorted(set(questions)) if per == "question" else [None]:
        own = [n for n in dict.fromkeys(nodes) if scope is None or n % 3 == scope]
        quota = k if scope is not None else k * len(set(questions))
        ranked = sorted(own, key=lambda n: (-variance[n], n % 3, nodes.index(n)))
        chosen |= {n for n in ranked[:quota] if variance[n] > 0}
    found = kept(rewards, nodes, questions, top_k=k, per=per)
    assert {n for n, keep in zip(nodes, found, strict=True) if keep} == chosen


def test_an_infinite_weight_of_the_efficiency_is_refused():
    """The last call's R_E is 0, and ∞ · 0 is NaN."""
    with pytest.raises(ValueError, match="mas.credit.efficiency=inf must be a finite number of at least 0"):
        efficiency(float("inf"))


def test_advantages_are_grpo_at_each_node():
    batch = rows([1.0, 0.0, 0.5, 0.5], [2, 4, 1, 3], [0, 0, 1, 1])
    advantages = JoyAgents().advantages
    assert torch.equal(advantages(batch, CONFIG), MHGPO().advantages(batch, CONFIG))
    half = 0.5 / (0.5**0.5 + 1e-6)
    assert advantages(batch, None)[0].tolist() == pytest.approx([half, half, 0, 0])
