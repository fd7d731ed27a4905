"""What has been done in a trajectory, and the error of a row that cannot be scored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from verl_ext.mas import Task
from verl_ext.rewards.calls import Invocation


@dataclass
class Work:
    """What has been done in a trajectory.

    history: what a fold replaces: the memories that this window began with, its outputs and observations. limit: the
    limit that ended it ("" if none did). score: an environment's, of its task. shown: each call as a judge reads it.
    """

    task: Task
    answer: str = ""
    calls: list[Invocation] = field(default_factory=list)
    shown: list[dict[str, Any]] = field(default_factory=list)
    history: list[str] = field(default_factory=list)
    actions: int = 0
    searches: int = 0
    folds: int = 0
    refused_folds: int = 0
    broken: int = 0
    tool_failures: int = 0
    limit: str = ""
    score: float = 0.0


def lacking(task: Task, success: str, lack: str, remedy: str) -> ValueError:
    """The error of a row that cannot be scored."""
    given = sorted(task.ground_truth) if isinstance(task.ground_truth, dict) else task.ground_truth
    return ValueError(
        f"row {task.index} has {lack}, which mas.workflow.success={success} needs; given are {given!r:.120}. "
        f"Remedy: mas.workflow.success={remedy}; or prepare the data again (data_prep/)"
    )
