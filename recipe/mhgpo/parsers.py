"""Parsers of the three agents' outputs, which have the same form under the full prompts and the tiny model's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from verl_ext.mas import Unparsable
from verl_ext.rewards.qa import without_preface

# The prompt shows `<query1>`, so some models write the brackets, too.
_AROUND = " \t\r\n<>"
# What it shows, copied by a small model, is no query; nor is nothing.
_COPIED = re.compile(r"(query ?\d|\.\.\.|…)?")
_QUERIES = re.compile(r"###(.*?)###", re.DOTALL)
# No two neighbouring parts can match the same blanks: matching stays linear in whatever a policy writes.
_ID = r"(?:document\s*)?[0-9]+"
_ID_LIST = re.compile(rf"{_ID}(?:(?:\s*[,;]\s*|\s+){_ID})*\s*\.?", re.IGNORECASE)
# Longer ids are out of range anyway, and Python refuses to convert numbers of thousands of digits.
_MAX_DIGITS = 9


def queries(text: str, /, question: str, **_: Any) -> list[str]:
    """`### q1 ; q2 ###` -> ["q1", "q2"], as written: a repeated query counts for the penalty, so it stays.

    Raises:
        Unparsable: no ### … ###, nothing in it, or only the prompt's own placeholders; falls back to the question.
    """
    found = _QUERIES.search(text)
    written = [query.strip(_AROUND) for query in found.group(1).split(";")] if found else []
    if all(_COPIED.fullmatch(query) for query in written):
        raise Unparsable("expected `### query ; query ###`", fallback=[question])
    return [query for query in written if query]


def chosen_documents(text: str, /, docs: Sequence[dict[str, str]], **_: Any) -> list[dict[str, str]]:
    """`2 , 0` -> [docs[2], docs[0]]; "Document 2, Document 0" is understood, too.

    Raises:
        Unparsable: not a list of ids, an id out of range, or the same id twice; falls back to the valid ids, each
            once, and to the first document if none is valid.
    """
    numbers = re.findall(r"[0-9]+", text) if _ID_LIST.fullmatch(text.strip()) else []
    ids = [int(number) if len(number) <= _MAX_DIGITS else len(docs) for number in numbers]
    valid = [i for i in dict.fromkeys(ids) if i < len(docs)]
    if not ids or len(valid) != len(ids):
        fallback = [docs[i] for i in valid] or list(docs[:1])
        raise Unparsable(f"expected distinct ids from 0 to {len(docs) - 1}", fallback=fallback)
    return [docs[i] for i in valid]


def answer(text: str, /, **_: Any) -> str:
    """The text, without `The answer is:` before it, blanks around it and a final full stop."""
    return without_preface(text).removesuffix(".").strip()
