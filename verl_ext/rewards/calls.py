"""Tool calls for rewards: the calls that were made, and the gold calls of a data set."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Row(Protocol):
    """The fields of a task (`verl_ext.mas.Task`) that are read here."""

    @property
    def ground_truth(self) -> Any: ...

    @property
    def index(self) -> int: ...

    @property
    def question(self) -> str: ...

    @property
    def extra(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Invocation:
    """A tool call that was made, or a gold call.

    arguments: None in a gold path that only names tools. ok: the answer was no error. effect: it changed the state of
    an environment.
    """

    name: str
    arguments: dict[str, Any] | None = field(default_factory=dict)
    ok: bool = True
    effect: bool = True


def gold_path(task: Row) -> Sequence[Invocation]:
    """The task's gold calls: `reward_model.ground_truth.path`, a JSON list of names or of {"name", "arguments"}.

    Raises:
        ValueError: it has another form.
    """
    said = (task.ground_truth or {}).get("path")
    try:
        path = json.loads(said) if isinstance(said, str) else said
    except (ValueError, RecursionError):
        path = said
    path = [] if path is None else path
    if isinstance(path, str | dict) or not isinstance(path, Iterable):
        raise ValueError(f"ground_truth.path of row {task.index} must be a list, or one in JSON, given {said!r:.120}")
    gold = []
    for one in path:
        if isinstance(one, str):
            gold.append(Invocation(one, None))
        elif isinstance(one, dict) and isinstance(one.get("name"), str) and _arguments(one):
            gold.append(Invocation(one["name"], one.get("arguments")))
        else:
            raise ValueError(f"ground_truth.path of row {task.index} must list names or calls, given {one!r:.120}")
    return gold


def _arguments(call: dict[str, Any]) -> bool:
    return call.get("arguments") is None or isinstance(call["arguments"], dict)
