"""Scores of a short answer: exact match, token F1, accuracy (gold contained in the answer).

Normalisation is SQuAD's, as in verl.utils.reward_score.search_r1_like_qa_em.normalize_answer (restated here so that
scoring does not import verl; a test compares the two). F1 follows HotpotQA's official evaluation
(https://github.com/hotpotqa/hotpot/blob/master/hotpot_evaluate_v1.py). Spec: MHGPO, section "What to reproduce".
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
# Before an answer; exact match and F1 would count these words as wrong ones.
_PREFACE = re.compile(
    r"\A(?:the\s+)?(?:final\s+)?answer(?:\s+to\s+(?:the|this|your)\s+question)?(?:\s+is)?\s*:\s*", re.IGNORECASE
)
CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})


def normalize_answer(text: str) -> str:
    """Lower case, no ASCII punctuation, no English articles, single blanks. May become empty ("The" -> "")."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def without_preface(answer: str) -> str:
    """`The answer is: 540.` -> `540.`: an answer without the words that lead up to it, and blanks."""
    return _PREFACE.sub("", answer.strip(), count=1).strip()


def exact_match(prediction: str, gold: str) -> float:
    """1.0 when both are equal after normalisation, else 0.0."""
    return float(normalize_answer(prediction) == normalize_answer(gold))


def f1_score(prediction: str, gold: str) -> float:
    """Token F1 of the normalised texts, in [0, 1]; repeated tokens count as often as both texts have them.

    HotpotQA's rule: if one text is yes, no or noanswer and the other differs, the score is 0 ("yes it is" for "yes").
    Two texts without tokens score 1, as in SQuAD 2.0; HotpotQA's script gives 0, so that a gold "A" never scores.
    """
    left, right = normalize_answer(prediction), normalize_answer(gold)
    if left == right:
        return 1.0
    if left in CLOSED_ANSWERS or right in CLOSED_ANSWERS:
        return 0.0
    tokens, gold_tokens = left.split(), right.split()
    shared = sum((Counter(tokens) & Counter(gold_tokens)).values())
    return 2 * shared / (len(tokens) + len(gold_tokens)) if shared else 0.0


def accuracy(prediction: str, gold: str) -> float:
    """1.0 when the normalised gold is contained in the normalised prediction, else 0.0.

    Characters are compared, as in the field's papers ("american" is in "americans"), with two exceptions: yes, no and
    noanswer must be whole words ("no" is not in "north pole"), and a gold answer without tokens must match exactly.
    """
    left, right = normalize_answer(prediction), normalize_answer(gold)
    if right in CLOSED_ANSWERS:
        return float(right in left.split())
    return float(right in left) if right else float(left == right)


def qa_scores(prediction: str, golds: str | Sequence[str]) -> dict[str, float]:
    """{"em", "f1", "acc"} of one answer, each the best over the gold aliases.

    Raises ValueError when prediction is not a string or golds is not one or more strings: broken rows must not score 0.
    """
    aliases = [golds] if isinstance(golds, str) else list(golds)
    if not isinstance(prediction, str) or not aliases or not all(isinstance(gold, str) for gold in aliases):
        raise ValueError(
            f"qa_scores needs a string and one or more gold strings, given prediction={prediction!r:.80}, "
            f"golds={golds!r:.200}; correct reward_model.ground_truth.target of the data set."
        )
    return {
        "em": max(exact_match(prediction, gold) for gold in aliases),
        "f1": max(f1_score(prediction, gold) for gold in aliases),
        "acc": max(accuracy(prediction, gold) for gold in aliases),
    }
