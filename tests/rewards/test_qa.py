"""Answer scores: numbers by hand, the yes/no rule, aliases, agreement with verl, invariances."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verl.utils.reward_score.search_r1_like_qa_em import normalize_answer as reference

from verl_ext.rewards.qa import f1_score, normalize_answer, qa_scores

WORDS = st.sampled_from(
    ["the", "a", "yes", "no", "noanswer", "Paris", "paris.", "U.S.", "Żuławski", "35", "  ", "-", "n.o"]
)
ANSWERS = st.one_of(st.text(max_size=30), st.lists(WORDS, max_size=6).map(" ".join))


@pytest.mark.parametrize(
    "text, expected",
    [
        ("The  Eiffel Tower!", "eiffel tower"),
        ("U.S.A.", "usa"),
        ("a an the", ""),
        ("theatre another", "theatre another"),
        ("mid-1990s", "mid1990s"),
        ("ŻUŁAWSKI", "żuławski"),
        ("“quoted”", "“quoted”"),  # only ASCII punctuation is removed, as in SQuAD's script
        ("\u00a0Paris\t\n", "paris"),
        ("", ""),
    ],
)
def test_normalisation(text, expected):
    assert normalize_answer(text) == expected


@given(ANSWERS)
def test_normalisation_agrees_with_verl(text):
    assert normalize_answer(text) == reference(text)


# What hotpot_evaluate_v1.py (https://github.com/hotpotqa/hotpot) prints for these pairs, worked out by hand from its
# rules: lower case, no punctuation, no articles, blanks squeezed; em: equal; f1: 0 if one side is yes, no or noanswer
# and they differ, 0 without a shared token, else 2PR/(P + R) with P = shared/prediction, R = shared/gold.
# acc: the gold's characters are in the prediction; yes, no and noanswer must be whole words.
OFFICIAL = [
    ("Yes", "yes", 1, 1, 1),
    ("yes.", "yes", 1, 1, 1),
    ("yes, they are", "yes", 0, 0, 1),  # F1 of plain SQuAD: 2 · 1/3 / (4/3) = 0.5
    ("yes", "yes they are", 0, 0, 0),
    ("no", "yes", 0, 0, 0),
    ("No no", "no", 0, 0, 1),
    ("no", "no one", 0, 0, 0),
    ("north pole", "no", 0, 0, 0),  # "no" is a part of "north", not a word of it
    ("noanswer", "noanswer", 1, 1, 1),
    ("noanswer", "Kyoto", 0, 0, 0),
    ("no answer", "noanswer", 0, 0, 0),
    ("not yes", "yes no", 0, 2 * (1 / 2) * (1 / 2), 0),  # neither side is just yes or no
    ("the Chief of Protocol", "Chief of Protocol", 1, 1, 1),
    ("Chief of Protocol of the United States", "Chief of Protocol", 0, 2 * (3 / 6) / (3 / 6 + 1), 1),
    ("Greenwich Village, New York", "Greenwich Village, New York City", 0, 2 * (4 / 5) / (1 + 4 / 5), 0),
    ("3,677 seated", "3677 seated", 1, 1, 1),
    ("from 1986 to 2013", "1986 2013", 0, 2 * (2 / 4) / (2 / 4 + 1), 0),
    ("Vonnegut's", "Vonnegut", 0, 0, 1),  # "vonneguts" is another token, with the gold's characters in it
    ("New York New York", "New York", 0, 2 * (2 / 4) / (2 / 4 + 1), 1),  # tokens count as often as in both
    ("to be", "to be to be", 0, 2 * 1 * 0.5 / 1.5, 0),
    ("New York City", "York New", 0, 0.8, 0),  # precision 2/3, recall 1
    ("Andrzej Żuławski", "Żuławski", 0, 2 * 0.5 * 1 / 1.5, 1),
    ("", "Kyoto", 0, 0, 0),
    ("The", "Kyoto", 0, 0, 0),
]


@pytest.mark.parametrize("prediction, gold, em, f1, acc", OFFICIAL)
def test_em_and_f1_are_those_of_the_official_evaluation(prediction, gold, em, f1, acc):
    assert qa_scores(prediction, gold) == pytest.approx({"em": em, "f1": f1, "acc": acc})


def test_texts_without_tokens_match_only_each_other():
    assert qa_scores("A", ["the"]) == {"em": 1, "f1": 1, "acc": 1}  # both normalise to ""
    assert qa_scores("Paris", ["The"]) == {"em": 0, "f1": 0, "acc": 0}  # "" is not "contained" in everything


def test_each_score_is_the_best_over_the_aliases():
    golds = ["United States of America", "USA", "America"]
    assert qa_scores("usa", golds) == {"em": 1, "f1": 1, "acc": 1}
    best = qa_scores("the America of states", golds)  # tokens: america of states
    assert best == pytest.approx({"em": 0, "f1": 2 * 3 / (3 + 4), "acc": 1})
    assert qa_scores("USA", "U.S.A.")["em"] == 1


@pytest.mark.parametrize("prediction, golds", [(None, ["a"]), (3, ["a"]), ("a", []), ("a", [None]), ("a", [["a"]])])
def test_broken_rows_raise_instead_of_scoring_zero(prediction, golds):
    with pytest.raises(ValueError, match="reward_model.ground_truth.target"):
        qa_scores(prediction, golds)


@given(ANSWERS, st.lists(ANSWERS, min_size=1, max_size=4))
def test_invariants(prediction, golds):
    scores = qa_scores(prediction, golds)
    assert all(0 <= value <= 1 for value in scores.values())
    assert scores["em"] <= min(scores["f1"], scores["acc"])
    assert qa_scores(prediction, golds[::-1]) == scores
    assert qa_scores(f" ;{prediction}!", golds) == scores  # punctuation and blanks do not count
    more = qa_scores(prediction, [*golds, "one more alias"])
    assert all(more[name] >= scores[name] for name in scores)
    assert qa_scores(golds[0], golds) == {"em": 1, "f1": 1, "acc": 1}


@given(ANSWERS, ANSWERS)
def test_f1_is_symmetric_and_agrees_with_precision_and_recall(prediction, gold):
    assert f1_score(prediction, gold) == f1_score(gold, prediction)
    left, right = normalize_answer(prediction).split(), normalize_answer(gold).split()
    closed = {"yes", "no", "noanswer"}
    remaining, shared = list(right), 0
    for token in left:
        if token in remaining:
            remaining.remove(token)
            shared += 1
    if left == right:
        expected = 1.0
    elif " ".join(left) in closed or " ".join(right) in closed or not shared:
        expected = 0.0
    else:
        precision, recall = shared / len(left), shared / len(right)
        expected = 2 * precision * recall / (precision + recall)
    assert f1_score(prediction, gold) == pytest.approx(expected)
