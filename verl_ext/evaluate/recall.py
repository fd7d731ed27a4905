"""Retrieval recall: gold titles among the documents that a trajectory's tools found, and that its workflow chose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from verl_ext.mas.types import Task, Trajectory
from verl_ext.tools.retrieval.recall import same_title

DEPTHS = (5, 10)


def recall_scores(task: Task, trajectory: Trajectory) -> dict[str, float]:
    """Share of the question's gold titles, in [0, 1]: `recall@5`, `recall@10` among the first documents that the tools
    returned (all searches of the trajectory in a row, each document once), `recall_<note>` among the documents noted.

    Documents are mappings with a "title". Empty for questions without `extra_info.gold_titles`, and where no tool
    returned a list of documents (an empty list counts: nothing was found).
    """
    gold = {same_title(title) for title in task.extra.get("gold_titles") or [] if isinstance(title, str)}
    if not gold:
        return {}
    lists = [titles for record in trajectory.tools if (titles := _titles(record.result)) is not None]
    scores = {}
    if lists:
        found = list(dict.fromkeys(title for titles in lists for title in titles))
        scores = {f"recall@{k}": _share(gold, found[:k]) for k in DEPTHS}
    for name, value in trajectory.notes.items():
        if (titles := _titles(value)) is not None:
            scores[f"recall_{name}"] = _share(gold, titles)
    return scores


def _titles(value: Any) -> list[tuple[str, str]] | None:
    """(normalised title, the document's identity) of each document; None if `value` is no list of documents."""
    if not isinstance(value, list) or not all(
        isinstance(v, Mapping) and isinstance(v.get("title"), str) for v in value
    ):
        return None
    return [(same_title(document["title"]), str(document.get("pid", document.get("text")))) for document in value]


def _share(gold: set[str], documents: Iterable[tuple[str, str]]) -> float:
    return len(gold & {title for title, _ in documents}) / len(gold)
