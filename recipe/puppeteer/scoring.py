"""Scores an answer, by data set: r ∈ {0, 1} for tasks with one right answer, r ∈ [0, 1] for open tasks.

Sets: GSM8K and GSM-Hard (a number, within a tolerance), MMLU-Pro (a letter), CommonGen-Hard (the share of the concepts
that the text has), SRDD (whether there is a program), everything else by exact match after SQuAD's normalisation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from verl.utils.reward_score.search_r1_like_qa_em import normalize_answer

from verl_ext.rewards.numbers import number_of, same_number
from verl_ext.rewards.truth import targets_of

LETTER = re.compile(r"\b([A-J])\b")
# "I think", "I'd", "A good choice": a pronoun or an article, if another letter is named.
WORD = re.compile(r"\b(?:I['’]|[AI] (?!is\b|because\b|and\b|or\b)[a-z])")


def letter_of(text: str) -> str:
    """The option that an answer names: `(C)`, `C`, `C. Paris`, `The answer is C`; the last one. Empty: none."""
    bare = text.strip()
    first = re.match(r"\(?([A-Ja-j])\)?(?:[.):,\s]|$)", bare)
    if first and (len(bare) == 1 or bare[1:2] in ").:," or bare[0] == "("):
        return first[1].upper()
    found = LETTER.findall(WORD.sub("", bare)) or LETTER.findall(bare)
    return found[-1] if found else ""


@cache
def _stemmer() -> Any:
    import Stemmer

    return Stemmer.Stemmer("english")


def coverage(text: str, concepts: Sequence[str]) -> float:
    """The share of the concepts that occur in the text, compared by word stems; all words of a concept must occur."""
    stem = _stemmer().stemWords
    words = set(stem(re.findall(r"[a-z]+", text.lower())))
    wanted = [stem(re.findall(r"[a-z]+", concept.lower())) for concept in concepts]
    return sum(bool(parts) and set(parts) <= words for parts in wanted) / len(wanted) if wanted else 0.0


# By the beginning of a data source's name: whether an answer can ever meet a target, and what a target must be.
KINDS: dict[str, tuple[Callable[[str], bool], str]] = {
    "gsm": (lambda target: number_of(target) is not None, "a number"),
    "mmlu": (lambda target: LETTER.fullmatch(target) is not None, "a letter from A to J"),
    "commongen": (lambda target: bool(re.search(r"[a-z]", target.lower())), "a word in Latin letters"),
}


def is_open(data_source: str) -> bool:
    """Whether answers are whole texts or programs (CommonGen-Hard, SRDD)."""
    return data_source.startswith(("commongen", "srdd"))


def score(data_source: str, answer: str, truth: Any) -> float:
    """The score of an answer, in [0, 1].

    Args:
        truth: `reward_model.ground_truth`: a mapping with `target`, the right answers, or concepts.

    Raises:
        ValueError: the row has no target, or one that no answer could ever meet.
    """
    if data_source.startswith("srdd"):
        return float(bool(answer))  # there is no right answer; quality.py measures the program
    targets = targets_of(truth, f"a row of {data_source!r}")
    if not targets:
        raise ValueError(f"a row of {data_source!r} has no target: ground_truth is {truth!r}")
    for kind, (reachable, what) in KINDS.items():
        if data_source.startswith(kind) and not all(map(reachable, targets)):
            raise ValueError(f"each target of a row of {data_source!r} must be {what}, given {targets!r:.200}")
    if not answer:
        return 0.0
    if data_source.startswith("gsm"):
        return float(any(same_number(answer, target) for target in targets))
    if data_source.startswith("mmlu"):
        return float(letter_of(answer) in targets)
    if data_source.startswith("commongen"):
        return coverage(answer, targets)
    return float(normalize_answer(answer) in [normalize_answer(target) for target in targets])


def key_of(data_source: str, answer: str) -> str:
    """The key by which a majority vote counts answers: equal for equivalent answers."""
    if data_source.startswith("gsm"):
        said = number_of(answer)
        return "" if said is None else repr(round(said, 3) + 0.0)  # −0 is 0
    return letter_of(answer) if data_source.startswith("mmlu") else normalize_answer(answer)


def majority(data_source: str, answers: Sequence[str]) -> str:
    """F_agg: the most frequent answer of the explorations, the first one of a tie; empty answers do not count."""
    votes = Counter(key for answer in answers if (key := key_of(data_source, answer)))
    if not votes:
        return next((answer for answer in answers if answer), "")
    best = max(votes.values())
    return next(answer for answer in answers if votes.get(key_of(data_source, answer)) == best)
