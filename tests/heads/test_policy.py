"""A head's choices: the probabilities of the formula, and noise that depends on nothing but the call."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_ext.heads import PolicyHead, Weights
from verl_ext.heads.policy import distribution, draw
from verl_ext.mas.noise import derive_seed
from verl_ext.memory import HashingSimilarity

POOL = ["planning", "run_python", "web_search", "terminate"]


def trained_head(width=16, size=1.0):
    head = PolicyHead(HashingSimilarity(width))
    head.weights = Weights(np.random.default_rng(3).normal(size=(width, width)) * size, 7)
    return head


def asked(head, seed=5, temperature=1.0, options=POOL, state="who: 7 * 6"):
    sampling = {"choices": list(options), "temperature": temperature, "seed": seed}
    return asyncio.run(head.complete([{"role": "user", "content": state}], [], sampling, ("q",)))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_probabilities_are_those_of_the_formula(temperature):
    head = trained_head()
    state = head.similarity.encode(["who: 7 * 6"])[0].astype(float)
    logits = []
    for option in POOL:
        vector = head.similarity.encode([option])[0].astype(float)
        logits.append(
            sum(state[i] * head.weights.matrix[i, j] * vector[j] for i in range(16) for j in range(16)) / temperature
        )
    total = sum(math.exp(logit) for logit in logits)
    found = head.log_probs("who: 7 * 6", POOL, temperature)
    assert found == pytest.approx([logit - math.log(total) for logit in logits], abs=1e-12)
    assert found.std() > 0.1


def test_large_logits_do_not_overflow():
    one = np.eye(2)
    assert distribution(one[0], np.array([[2000.0, 0.0], [0.0, 0.0]]), one, 1.0).tolist() == [0.0, -2000.0]


def test_without_training_all_are_equal_and_unseen_states_too():
    head = PolicyHead(HashingSimilarity(16))
    head.weights = Weights(np.zeros((16, 16)))
    for state in ("who: 1", "", "日本"):
        assert head.log_probs(state, POOL) == pytest.approx(np.full(4, -math.log(4)), abs=1e-15)


def test_choices_are_as_frequent_as_they_are_probable():
    head = trained_head()
    log_probs = head.log_probs("who: 7 * 6", POOL)
    drawn = [draw(log_probs, derive_seed("a call", n), greedy=False) for n in range(20_000)]
    shares = np.bincount(drawn, minlength=4) / len(drawn)
    assert shares == pytest.approx(np.exp(log_probs), abs=4 * 0.5 / math.sqrt(len(drawn)))


@given(st.lists(st.floats(-700, 0), min_size=1, max_size=30), st.integers(0, 2**63 - 1), st.booleans())
def test_a_choice_is_always_one_of_the_options(log_probs, seed, greedy):
    values = np.array(log_probs)
    chosen = draw(values, seed, greedy)
    assert 0 <= chosen < len(values) and chosen == draw(values.copy(), seed, greedy)
    assert not greedy or values[chosen] == values.max()


def test_equal_options_are_equally_likely_also_greedily():
    found = [draw(np.array([-1.0, -5.0, -1.0]), derive_seed(n), greedy=True) for n in range(1000)]
    assert set(found) == {0, 2} and 0.4 < found.count(0) / 1000 < 0.6


def test_an_answer_is_the_option_and_its_probability_without_any_token():
    head = trained_head()
    answer = asked(head)
    known = dict(zip(POOL, head.log_probs("who: 7 * 6", POOL), strict=True))
    assert answer.text in POOL and answer.generation.decided == known[answer.text]
    assert (answer.prompt_tokens, answer.generated_tokens, answer.generation.token_ids) == (0, 0, [])
    assert (answer.generation.min_version, answer.generation.max_version) == (7, 7)
    assert {asked(head, seed).text for seed in range(0, 2**63, 2**58)} > {answer.text}
    assert len({asked(head).text for _ in range(5)}) == 1, "the same call decides the same"


def test_greedy_takes_the_most_probable_and_says_its_probability_at_temperature_one():
    head = trained_head()
    log_probs = head.log_probs("who: 7 * 6", POOL)
    for seed in (1, 2**40, 2**62):
        answer = asked(head, seed, temperature=0.0)
        assert answer.text == POOL[int(log_probs.argmax())] and answer.generation.decided == log_probs.max()


def test_without_weights_it_does_not_decide():
    with pytest.raises(RuntimeError, match="before it had any weights"):
        asked(PolicyHead(HashingSimilarity(16)))
