"""The forest of a question: the task of its data-set row, and what a rollout worker brings to it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from verl_ext.mas.forest import Forest
from verl_ext.mas.noise import derive_seed
from verl_ext.mas.types import Task

if TYPE_CHECKING:
    from verl_ext.trainer.rollout.worker import RolloutWorker


def make_forest(worker: RolloutWorker, name: str, question: dict[str, Any], validate: bool) -> Forest:
    """The empty forest of a data-set row. Its noise depends on the training step, so a question never repeats itself.

    Args:
        name: of the question, unique in the run; begins the names of its requests.
    """
    task = Task(
        question=question["raw_prompt"][-1]["content"],
        ground_truth=(question.get("reward_model") or {}).get("ground_truth"),
        data_source=str(question.get("data_source", "unknown")),
        index=int(question["index"]),
        extra=question.get("extra_info") or {},
    )
    mas, memory = worker.mas, worker.memory
    moment = "validate" if validate else int(question["global_steps"])
    return Forest(
        task,
        worker.workflow,
        worker.llm,
        worker.tool_objects,
        seed=derive_seed(mas.seed, moment, task.data_source, task.index),
        sampling=worker.sampling[validate],
        greedy=validate,
        limits=worker.limits,
        name=name,
        clock=worker.clock,
        threads=worker.threads,
        turns=worker.turns,
        memory=partial(memory.recall, k=mas.memory.recall) if memory is not None and mas.memory is not None else None,
        adapters=worker.adapters,
        models=worker.models,
        failure_rewards=mas.failure.rewards,
    )
