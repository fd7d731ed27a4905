"""The reward of solve.py: all that verl_ext needs beside the recipe."""

from __future__ import annotations

from typing import Any

from verl_ext.mas import Task


def exact_match(task: Task, result: Any) -> tuple[float, dict[str, float]]:
    """Is the last number that the script prints the right one."""
    correct = float(str(result).split()[-1:] == list(task.ground_truth["target"]))
    return correct, {"em": correct}
