"""Mixture: tasks of several kinds in one run, as ToolPO's training data (Section 3.5): tools, environments, questions.

    mas:
      workflow:
        _target_: verl_ext.recipe.deepagent.Mixture
        _recursive_: false                       # the mixture builds its parts, with the options of all
        max_actions: 50
        of:                                      # pattern of a row's data_source -> the workflow that plays it
          toolbench_*: {_target_: verl_ext.recipe.deepagent.DeepAgent, success: path, ordered: false}
          alfworld: {_target_: verl_ext.recipe.deepagent.environments.EnvironmentAgent, tools: given}

The rows of `data.train_files` decide how often each kind is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from hydra.utils import instantiate

from verl_ext.mas import Task, Workflow


class Mixture(Workflow):
    """Plays each task by the workflow of its data source. All of them have the same agents, with the same prompts.

    Args:
        of: pattern of `data_source`, as of file names (the first that fits) -> `_target_` and options of a workflow.
        options: options of all of them, where `of` has no others.

    Raises:
        ValueError: `of` is empty, or one of the workflows has other agents or prompts than the first.
    """

    headline = "success"

    def __init__(self, of: Mapping[str, Mapping[str, Any]], **options: Any):
        if not of:
            raise ValueError("mas.workflow.of names no workflow; e.g. of: {toolbench: {_target_: …DeepAgent}}")
        self.parts: dict[str, Workflow] = {
            source: instantiate({**options, **given}, _convert_="all") for source, given in of.items()
        }
        (name, first), *others = self.parts.items()
        for source, part in others:
            if _sampled(part) != _sampled(first):
                raise ValueError(
                    f"mas.workflow.of.{source} has the agents {_sampled(part)}, {name} has {_sampled(first)}; the "
                    "workflows of a mixture need the same agents with the same stops. Remedy: max_folds=0 for all"
                )
        prompts = {source: {**options, **given}.get("prompts", "faithful") for source, given in of.items()}
        if len(set(prompts.values())) > 1:  # the first one's agents act for all of them
            raise ValueError(
                f"the workflows of mas.workflow.of have different prompts: {prompts}. Remedy: mas.workflow.prompts"
            )
        self.agents = first.agents
        self.needs = tuple(dict.fromkeys(tool for part in self.parts.values() for tool in part.needs))
        self.details = tuple(dict.fromkeys(name for part in self.parts.values() for name in part.details))
        self.needs_judge = any(part.needs_judge for part in self.parts.values())

    def _part(self, task: Task) -> Workflow:
        found = next((part for pattern, part in self.parts.items() if fnmatchcase(task.data_source, pattern)), None)
        if found is None:
            raise ValueError(
                f"row {task.index} has data_source {task.data_source!r}, for which mas.workflow.of has no workflow; it "
                f"has {', '.join(self.parts)}"
            )
        return found

    async def run(self, task: Task, ctx: Any) -> Any:
        return await self._part(task).run(task, ctx)

    def reward(self, task: Task, result: Any) -> Any:
        part = self._part(task)
        part.judge = self.judge
        return part.reward(task, result)


def _sampled(workflow: Workflow) -> dict[str, Any]:
    return {name: agent.sampling for name, agent in workflow.agents.items()}
