"""EnvironmentAgent: DeepAgent with an environment as its tools. Calls change its state; it also gives the reward."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

from verl_ext.mas import Task
from verl_ext.mas.options import one_of
from verl_ext.recipe.deepagent import grammar
from verl_ext.recipe.deepagent.environments.alfworld import path_share
from verl_ext.recipe.deepagent.environments.base import name_of
from verl_ext.recipe.deepagent.workflow import DeepAgent, Work

# Metrics of a gold path, which these tasks do not have.
OF_A_PATH = ("path", "path_complete")


class EnvironmentAgent(DeepAgent):
    """DeepAgent in an environment. R_succ is the environment's score of the last turn, in [0, 1].

    ALFWorld has the metric `path` beside it (`alfworld.path_share`).

    `mas.tools.<environment>` is an `EnvironmentTool`, `extra_info.id` of a row its name of the task.

    Args:
        options: those of DeepAgent; `success`, `ordered` and gold paths have no meaning here. `correct`: effect (calls
            that changed the environment) or executed (all that it answered); see `call_share`.
        environment: name of the tool, where one run has several (`Mixture`).
    """

    def __init__(self, environment: str = "environment", **options: Any):
        super().__init__(**{"correct": "effect", **options})
        one_of("correct", self.correct, ("effect", "executed"))
        self.environment = environment
        self.needs = (environment, "tool_search")
        self.details: tuple[str, ...] = tuple(name for name in DeepAgent.details if name not in OF_A_PATH)

    async def run(self, task: Task, ctx: Any) -> Work:
        begun = await ctx.tool(self.environment, task=name_of(task), past=[])
        return await super().run(replace(task, question=f"{task.question}\n\n{begun['result']}"), ctx)

    def _ask(self, ctx: Any, work: Work, step: grammar.Step) -> Awaitable[dict[str, Any]]:
        past = [{"name": call.name, "arguments": call.arguments} for call in work.calls if call.ok]
        task = name_of(work.task)
        return ctx.tool(self.environment, task=task, past=past, name=step.name, arguments=step.arguments)

    def _outcome(self, work: Work, answer: dict[str, Any]) -> str:
        content = self.prompts.outcome(answer, 25 * self.max_result_chars)
        if answer["ok"]:
            work.score = answer["score"]
            content += "\nThe task is over: answer now." if answer["done"] else ""
        return content

    def reward(self, task: Task, result: Work) -> tuple[float, dict[str, float]]:
        metrics = {name: value for name, value in self.measured(task, result).items() if name not in OF_A_PATH}
        scores = {"success": float(result.score >= 1.0), "score": result.score}
        share = path_share(result.task.question, (str(call.get("result", "")) for call in result.shown))
        scores |= {} if share is None else {"path": share}
        return result.score, scores | metrics
