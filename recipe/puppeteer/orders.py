"""Who acts next without learning: what the learned orchestrator is compared with.

An order is `(state, names, ctx, task) -> name`, deterministic given the state and `ctx.rng`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from verl_ext.mas import Task
from verl_ext.recipe.puppeteer.puppets import TERMINATE, State

Order = Callable[[State, Sequence[str], Any, Task], str]


def at_random(state: State, names: Sequence[str], ctx: Any, task: Task) -> str:
    """Each of the names with the same probability."""
    return ctx.rng.choice(list(names))


def fixed(sequence: Sequence[str]) -> Order:
    """One puppet after the other, then the end."""

    def order(state: State, names: Sequence[str], ctx: Any, task: Task) -> str:
        return sequence[len(state.steps)] if len(state.steps) < len(sequence) else TERMINATE

    return order


def oracle(state: State, names: Sequence[str], ctx: Any, task: Task) -> str:
    """The puppets that the task's data name as its shortest way (`extra_info.path`), then the end.

    Raises:
        ValueError: the data name none, or what is no list of names of the pool.
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
