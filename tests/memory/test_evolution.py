"""Algorithm 1 by hand: every branch, and its degenerate cases."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_ext.memory import Episode, Rules
from verl_ext.memory.evolution import Bounds, Trial, bounds, outside, rescore, softmax, survivors

# One trajectory of ten has R_M = 3, the others 0: μ = 0.3, σ = 0.9, U = 0.3 + 1.764, L = 0.3 − 1.764.
ONE_OF_TEN = Bounds(-1.464, 2.064)
TIMES, SCORES = np.array([3, 5, 4, 1]), np.array([2.0, 2.0, 2.0, 10.0])
PAPER = Rules()


def trial(reward, rows=(0, 1), shares=(0.25, 0.75), limits=ONE_OF_TEN):
    return Trial(reward, limits, np.array(rows, dtype=np.int64), shares)


def test_the_papers_hyperparameters_are_the_defaults():
    assert (PAPER.alpha, PAPER.beta, PAPER.threshold) == (1, 1, 0)


def test_the_reward_of_a_memory_has_no_efficiency_term():
    assert Episode("q", "t", accuracy=1.0, format=0.5).reward == 1.5


@pytest.mark.parametrize(
    "rewards, lower, upper",
    [
        ([3] + 9 * [0], -1.464, 2.064),
        ([2, 1, 1, 1, 1], 1.2 - 0.784, 1.2 + 0.784),  # σ = 0.4
        ([0, 1, 1, 1, 1], 0.8 - 0.784, 0.8 + 0.784),
        ([0.1, 0.1, 0.1], 0.1, 0.1),
        ([7], 7, 7),
    ],
)
def test_bounds(rewards, lower, upper):
    assert bounds(rewards) == pytest.approx((lower, upper), abs=1e-12)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30))
def test_bounds_agree_with_numpy(rewards):
    expected = np.mean(rewards) - 1.96 * np.std(rewards), np.mean(rewards) + 1.96 * np.std(rewards)
    assert bounds(rewards) == pytest.approx(expected, abs=1e-9)


@given(st.floats(-1e3, 1e3), st.integers(1, 60))
def test_no_trajectory_stands_out_among_equals(reward, count):
    limits = bounds([reward] * count)
    assert limits == (reward, reward) and outside(reward, limits) == 0


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_no_trajectory_stands_out_among_fewer_than_five(rewards):
    assert not any(outside(reward, bounds(rewards)) for reward in rewards)


def test_one_success_in_five_stands_out_and_two_in_nine_do_not():
    """The population's σ; with the sample's (0.447) one success in five would not."""
    assert outside(1, bounds([1, 0, 0, 0, 0])) == 1
    assert outside(0, bounds([1, 1, 1, 1, 0])) == -1
    assert outside(1, bounds([1, 1] + 7 * [0])) == 0


def test_a_question_without_trajectories_is_refused():
    with pytest.raises(ValueError, match="at least one trajectory"):
        bounds([])


def test_softmax():
    assert softmax([1.0, 0.0]) == pytest.approx([math.e / (math.e + 1), 1 / (math.e + 1)])
    assert softmax([0.3] * 4) == [0.25] * 4 and softmax([-1.0]) == [1.0] and softmax([]) == []
    assert softmax([1000.0, 0.0]) == [1.0, 0.0]


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20), st.floats(-1, 1))
def test_softmax_sums_to_one_and_ignores_a_shift(similarities, shift):
    shares = softmax(similarities)
    assert math.fsum(shares) == pytest.approx(1) and min(shares) > 0
    assert softmax([similarity + shift for similarity in similarities]) == pytest.approx(shares)


GAIN, LOSS = 0.936, 0.536  # |3 − U| and |−2 − L|
DECAYED = (TIMES.tolist(), [2 - 3, 2 - 1, 0, 5])  # by 6 − t_i
STEPS = [
    # Above U line 10 comes before line 11: Δt = 0. Memories that were not recalled decay.
    ([trial(3)], PAPER, [6, 6, 4, 1], [2 + 0.25 * GAIN, 2 + 0.75 * GAIN, 0, 5]),
    # Below L both time, −|6 − t_i|, and reward count against a memory; the time stamps stay.
    ([trial(-2)], PAPER, TIMES.tolist(), [2 - 3 - 0.25 * LOSS, 2 - 1 - 0.75 * LOSS, 0, 5]),
    # Within the bounds recalled memories stay as they are.
    *(([trial(r, shares=())], PAPER, TIMES.tolist(), [2, 2, 0, 5]) for r in (0, ONE_OF_TEN.upper, ONE_OF_TEN.lower)),
    # Without recall all decay.
    ([], PAPER, *DECAYED),
    ([trial(3, (), ())], PAPER, *DECAYED),
    # A refresh before a failure spares the time penalty, one after it does not.
    ([trial(3), trial(-2)], PAPER, [6, 6, 4, 1], [2 + 0.25 * (GAIN - LOSS), 2 + 0.75 * (GAIN - LOSS), 0, 5]),
    ([trial(-2), trial(3)], PAPER, [6, 6, 4, 1], [-1 + 0.25 * (GAIN - LOSS), 1 + 0.75 * (GAIN - LOSS), 0, 5]),
    # alpha and beta weigh time and reward.
    ([trial(-2)], Rules(alpha=0.5, beta=2), TIMES.tolist(), [0.5 - 0.5 * LOSS, 1.5 - 1.5 * LOSS, 1, 7.5]),
    ([trial(3)], Rules(alpha=0, beta=0), [6, 6, 4, 1], SCORES.tolist()),
]


@pytest.mark.parametrize(("trials", "rules", "times", "scores"), STEPS)
def test_a_step_by_hand(trials, rules, times, scores):
    given = TIMES.copy(), SCORES.copy()
    found = rescore(*given, 6, trials, rules)
    assert found[0].tolist() == times and found[1].tolist() == pytest.approx(scores)
    assert (given[0] == TIMES).all() and (given[1] == SCORES).all(), "the arguments are not changed"


def test_the_decay_of_every_step_adds_up_quadratically():
    times, scores = np.array([10]), np.array([0.0])
    for step in range(11, 16):
        times, scores = rescore(times, scores, step, [], PAPER)
    assert scores.tolist() == [-(1 + 2 + 3 + 4 + 5)] and times.tolist() == [10]


def kept(scores, capacity=10, times=None, ids=None, threshold=0.0):
    count = len(scores)
    ids = np.array(ids or range(1, count + 1))
    stays, low, surplus = survivors(
        ids,
        np.array(times or [0] * count),
        np.array(scores, dtype=float),
        Rules(capacity=capacity, threshold=threshold),
    )
    return ids[stays].tolist(), low, surplus


def test_scores_below_the_threshold_go_and_the_threshold_itself_stays():
    assert kept([0, -1e-12, 3, -2]) == ([1, 3], 2, 0)
    assert kept([0, 1, 2], threshold=1.5) == ([3], 2, 0)


def test_the_lowest_go_when_there_are_too_many():
    assert kept([5, 1, 3, -1, 2], capacity=2) == ([1, 3], 1, 2)
    assert kept([1, 9], capacity=1) == ([2], 0, 1)
    assert kept([]) == ([], 0, 0)


def test_of_equal_scores_the_older_time_goes_first_then_the_lower_id():
    assert kept([1, 1, 1], capacity=1, times=[5, 7, 6]) == ([2], 0, 2)
    assert kept([1, 1, 1], capacity=2, ids=[3, 8, 20]) == ([8, 20], 0, 1)


@pytest.mark.parametrize(
    "wrong", [{"alpha": -1}, {"beta": math.nan}, {"alpha": math.inf}, {"threshold": math.nan}, {"capacity": 0},
              {"capacity": True}, {"capacity": 2.0}]
)  # fmt: skip
def test_wrong_rules_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=rf"(?s)Rules\n{name}\n.*input_value="):
        Rules(**wrong)
