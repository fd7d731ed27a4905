"""Fixed rules for who acts next, with which the learned orchestrator is compared.

An order is a function `(state, names, ctx, task) -> name`. It depends on the state and `ctx.rng` only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from verl_ext.mas import Task
from verl_ext.recipe.puppeteer.puppets import TERMINATE, State

Order = Callable[[State, Sequence[str], Any, Task], str]


def at_random(state: State, names: Sequence[str], ctx: Any, task: Task) -> str:
    """Choose each name with the same probability."""
    return ctx.rng.choice(list(names))


def fixed(sequence: Sequence[str]) -> Order:
    """Choose the puppets of `sequence` one after the other, then terminate."""

    def order(state: State, names: Sequence[str], ctx: Any, task: Task) -> str:
        return sequence[len(state.steps)] if len(state.steps) < len(sequence) else TERMINATE

    return order


def oracle(state: State, names: Sequence[str], ctx: Any, task: Task) -> str:
    """Choose the puppets of the task's shortest solution (`extra_info.path`), then terminate.

    Raises:
        ValueError: the row has no path, or it is not a list of names of the pool.
    """
    path = task.extra.get("path")
    if path is None or len(path) == 0:
        raise ValueError(f"row {task.index} has no extra_info.path. Remedy: orchestration=learned, random or fixed")
    if isinstance(path, str) or any(name not in names for name in path):
        raise ValueError(
            f"extra_info.path of row {task.index} must be a list of {', '.join(names)}, but is {path!r:.200}. Remedy: "
            "correct the row, or mas.workflow.pool"
        )
    return path[len(state.steps)] if len(state.steps) < len(path) else TERMINATE
