"""Questions with gold titles, and the share of these titles that a retriever finds.

A questions file is parquet in verl's schema (the scripts of data_prep/ write it) or jsonl:
    extra_info: {"question": ..., "gold_titles": [...], ...}          or, at the top of a row,
    {"question": "Who starred in ...?", "gold_titles": ["Shirley Temple", "Kiss and Tell"]}
"""

import html
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_ext.storage.jsonl import read_rows

EXPECTED = '{"question": string, "gold_titles": list of strings}, at the top or in "extra_info"'


@dataclass(frozen=True)
class Question:
    """text: the query. gold: the titles of its gold passages, normalised by `same_title`, at least one."""

    text: str
    gold: frozenset[str]


def same_title(title: str) -> str:
    """A title in the form for comparison: NFKC, without HTML escapes, case folded, with single blanks."""
    return " ".join(unicodedata.normalize("NFKC", html.unescape(title)).casefold().split())


def read_questions(path: Path, limit: int | None = None) -> tuple[list[Question], int]:
    """(questions with gold titles, number of those without), of the first `limit` rows or all.

    A repeated title counts once. Raises ValueError for a malformed row, with its place, and when no question is left.
    """
    questions, without = [], 0
    for number, (where, row) in enumerate(_rows(path)):
        if number == limit:
            break
        question = _question(row, where)
        questions += [question] if question.gold else []
        without += not question.gold
    if not questions:
        raise ValueError(
            f"{path}: none of its {without} questions has gold titles, so there is no recall to measure; "
            f"expected rows {EXPECTED}."
        )
    return questions, without


def recall(questions: Sequence[Question], titles: Sequence[Sequence[str]], k: int) -> tuple[float, float]:
    """(recall@k, all@k), both in [0, 1].

    titles: per question the titles of the passages found, best first. recall@k: the share of a question's gold titles
    among its first k passages, averaged over the questions. all@k: the share of questions for which that is 1.
    """
    shares = []
    for question, found in zip(questions, titles, strict=True):
        hit = question.gold & {same_title(title) for title in found[:k]}
        shares.append(len(hit) / len(question.gold))
    return sum(shares) / len(shares), sum(share == 1 for share in shares) / len(shares)


def _question(row: Any, where: str) -> Question:
    if isinstance(row, dict) and isinstance(row.get("extra_info"), dict):
        row = row["extra_info"]
    text, titles = (row.get("question"), row.get("gold_titles")) if isinstance(row, dict) else (None, None)
    titles = [] if titles is None else titles
    if not isinstance(text, str) or not isinstance(titles, list) or not all(isinstance(t, str) for t in titles):
        raise ValueError(f"{where}: given {row!r:.120}, expected {EXPECTED}.")
    return Question(text, frozenset(same_title(title) for title in titles) - {""})


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    if not path.is_file() or path.suffix not in (".parquet", ".jsonl"):
        reason = "does not exist" if not path.is_file() else f"has the suffix {path.suffix!r}"
        raise ValueError(f"questions file {path} {reason}; give a .parquet or .jsonl file.")
    if path.suffix == ".jsonl":
        yield from read_rows(path, EXPECTED)
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = (row for batch in pq.ParquetFile(path).iter_batches(batch_size=1024) for row in batch.to_pylist())
        yield from ((f"{path} row {number}", row) for number, row in enumerate(rows, 1))
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path}: not a readable parquet file ({error}).") from error
