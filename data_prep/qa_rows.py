"""Questions of the question-answering sets in memory, and the layouts that several sets share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from verl_ext.data_prep.rows import decoded, list_field, split_of, text_field


@dataclass(frozen=True)
class QARow:
    """One question.

    Attributes:
        answers: accepted answers, the main one first.
        split: train | validation | None (not given).
        level, type: what the data set calls its difficulty and its kind (HotpotQA: easy, medium, hard; bridge,
            comparison); "" if it does not say.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    gold_titles: tuple[str, ...] = ()
    paragraphs: tuple[tuple[str, str], ...] = ()  # (title, text)
    split: str | None = None
    level: str = ""
    type: str = ""


@dataclass(frozen=True)
class QASet:
    """A data set.

    Attributes:
        parse: (row, where) -> QARow, or None for a row without an accepted answer.
        exclude: see rows.find_files.
    """

    name: str
    hub: str
    hub_config: str | None
    parse: Callable[[dict[str, Any], str], QARow | None]
    exclude: str = r"(?!)"


def parse_unified(row: dict[str, Any], where: str) -> QARow | None:
    """{"id", "question", "answers": [...], "gold_titles": [...], "paragraphs": [{"title", "text"}, ...] or null}.

    Every set may be given in this layout. gold_titles, paragraphs and "split" may be missing.
    """
    paragraphs = paragraphs_of(row, "text", where)
    titles = list_field(row, "gold_titles", where, optional=True)
    return make_row(row, where, list_field(row, "answers", where), titles, paragraphs, row.get("id"))


def parse_hotpot_layout(row: dict[str, Any], where: str) -> QARow | None:
    """HotpotQA's layouts, which 2WikiMultihopQA shares: the authors' json and the hub's columns.

    context: [[title, [sentence, ...]], ...] or {"title": [...], "sentences": [[...], ...]} or the JSON text of either.
    supporting_facts: [[title, sentence number], ...] or {"title": [...], "sent_id": [...]}, or its JSON text.
    """
    context = _pairs(row.get("context"), ("sentences", "content"), "context", where)
    facts = _pairs(row.get("supporting_facts"), ("sent_id",), "supporting_facts", where)
    paragraphs = [(str(title), join_sentences(sentences, where)) for title, sentences in context]
    identity = row.get("_id", row.get("id"))
    return make_row(row, where, [text_field(row, "answer", where)], [title for title, _ in facts], paragraphs, identity)


def make_row(
    row: dict[str, Any],
    where: str,
    answers: Sequence[Any],
    titles: Sequence[Any],
    paragraphs: Iterable[tuple[str, str]],
    identity: Any,
) -> QARow | None:
    """A QARow with its fields checked; None if no answer is left after stripping. Raises ValueError."""
    question = text_field(row, "question", where)
    if not question:
        raise ValueError(f"{where}: field 'question': given an empty string, expected a question.")
    if not isinstance(identity, str | int) or identity == "":
        raise ValueError(f"{where}: field 'id' (or '_id'): given {identity!r:.80}, expected a string or integer.")
    for value in (*answers, *titles):
        if not isinstance(value, str):
            given = f"{type(value).__name__} {value!r:.80}"
            raise ValueError(f"{where}: answers and titles must be strings, given {given}.")
    accepted = tuple(dict.fromkeys(answer.strip() for answer in answers if answer.strip()))
    gold = tuple(dict.fromkeys(title.strip() for title in titles if title.strip()))
    label = row.get("split")
    split = split_of(label) if isinstance(label, str) else None
    kinds = {name: str(row.get(name) or "").strip() for name in ("level", "type")}
    return QARow(str(identity), question, accepted, gold, tuple(paragraphs), split, **kinds) if accepted else None


def paragraphs_of(row: dict[str, Any], text: str, where: str) -> list[tuple[str, str]]:
    """(title, text) of each paragraph; `text`: name of the field with its text. A missing column has none."""
    found = []
    for number, item in enumerate(list_field(row, "paragraphs", where, optional=True)):
        place = f"{where}: paragraph {number}"
        if not isinstance(item, dict):
            raise ValueError(f"{place}: given {type(item).__name__}, expected {{'title': ..., '{text}': ...}}.")
        found.append((text_field(item, "title", place), text_field(item, text, place)))
    return found


def join_sentences(sentences: Any, where: str) -> str:
    """One paragraph. HotpotQA's sentences begin with a space, 2WikiMultihopQA's do not: added if missing."""
    if isinstance(sentences, str):
        return sentences.strip()
    if not isinstance(sentences, Iterable) or not all(isinstance(sentence, str) for sentence in sentences):
        raise ValueError(f"{where}: field 'context': given sentences {sentences!r:.80}, expected a list of strings.")
    text = ""
    for sentence in sentences:
        text += sentence if not text or text[-1].isspace() or sentence[:1].isspace() else f" {sentence}"
    return text.strip()


def _pairs(value: Any, keys: tuple[str, ...], name: str, where: str) -> list[tuple[Any, Any]]:
    """(title, other) pairs of a column in any of its layouts; a missing column has none."""
    value = decoded(value)
    try:
        if value is None:
            return []
        if isinstance(value, dict):
            other = next(value[key] for key in keys if key in value)
            return list(zip(value["title"], other, strict=True))
        pairs = []
        for item in value:
            if isinstance(item, dict):
                item = (item["title"], next(item[key] for key in keys if key in item))
            title, other = item
            pairs.append((title, other))
        return pairs
    except (TypeError, ValueError, KeyError, StopIteration) as error:
        expected = f'[[title, {keys[0]}], ...] or {{"title": [...], "{keys[0]}": [...]}} of equal lengths'
        raise ValueError(f"{where}: field '{name}': given {value!r:.120}, expected {expected}.") from error
