"""One decision of the function agent: what ToolBench's static evaluation asks for, a step at a time (Table 5)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from verl_ext.mas import Agent, Status, Task, Workflow
from verl_ext.mas.agent import unless_broken
from verl_ext.mas.options import at_least
from verl_ext.mas.prompts import prompts_of
from verl_ext.recipe.joyagents import grammar
from verl_ext.recipe.joyagents import prompts as faithful
from verl_ext.rewards.calls import gold_path
from verl_ext.rewards.toolbench import COLUMNS, Decision, Step, toolbench_scores

FINISH = "Finish"  # the function by which ToolBench's agents end
# Ways of counting, as the table names them; the script's is the one to compare with Table 5.
COUNTED = {"published script": "script", "paper's words": "text"}


class FunctionDecision(Workflow):
    """The function agent decides on the next step, after the right steps before it, which the question tells.

    A row is one of `data_prep/tools.py`: `ground_truth.path` begins with the call that comes next, or is empty
    where the answer does. On offer are its functions (`extra_info.tools`) and those found for the question. Reported
    are the columns of Table 5 in the paper's words, each by the steps that count in it, so that their means over a data
    set are the table's. An evaluation has the whole table, over all steps, by both ways of counting
    (verl_ext/rewards/toolbench.py).

    Args:
        offered: functions in the prompt; at least 1. Those of the row are always among them.
        prompts: faithful, or a YAML file (`mas/prompts.py`).

    Raises:
        ValueError: an argument out of range.
    """

    headline = "f1"
    needs = ("function_search",)
    needs_truth = True

    def __init__(self, offered: int = 8, prompts: str = "faithful") -> None:
        at_least(1, offered=offered)
        self.offered = offered
        prompt, stops = prompts_of(prompts, {"faithful": faithful}).decision, {"stop": list(grammar.STOPS)}
        read = partial(unless_broken, grammar.read_step)
        self.agents = {"function_agent": Agent(prompt, read, grammar.format_reward, sampling=stops)}

    async def run(self, task: Task, ctx: Any) -> tuple[grammar.Step, list[str]]:
        own = list(task.extra["tools"])
        found = [tool["name"] for tool in await ctx.tool("function_search", query=task.question, k=self.offered)]
        others = [name for name in found if name not in own][: max(0, self.offered - len(own))]
        tools = await ctx.tool("function_search", names=sorted({*own, *others}))
        step = await ctx.call("function_agent", query=task.question, tools=tools)
        if ctx.last.status is Status.TRUNCATED and step.kind == "answer":  # half an answer is none
            step = grammar.Step("answer")
        return step, [tool["name"] for tool in tools]

    def reward(self, task: Task, result: tuple[grammar.Step, list[str]]) -> tuple[float, dict[str, float]]:
        step = step_of(task, result)
        columns = toolbench_scores([step])
        if step.predicted.plan != "call":
            del columns["No_Hallu"]  # a share of the steps that call something
        reward = columns["F1"] if step.gold.plan == "call" else columns["Plan_ACC"]
        return reward, {name.lower(): value for name, value in columns.items()}

    def table(self, answered: Sequence[tuple[Task, Any]]) -> dict[str, dict[str, float]]:
        """Table 5: Plan_ACC, Act_EM, Easy_F1, Hard_F1, F1, No_Hallu and Avg, a row for each way of counting."""
        steps = [step_of(task, (grammar.Step(*said), offered)) for task, (said, offered) in answered]
        rows = {title: toolbench_scores(steps, counting) for title, counting in COUNTED.items()}
        return {title: {name: row[name] for name in (*COLUMNS, "Avg") if name in row} for title, row in rows.items()}


def step_of(task: Task, result: tuple[grammar.Step, Sequence[str]]) -> Step:
    """What was right, what was said, and what was on offer."""
    said, offered = result
    return Step(gold_decision(task), decision_of(said), frozenset(offered))


def decision_of(step: grammar.Step) -> Decision:
    """What an output decides. A call that cannot be read names nothing on offer; an empty output is none.

    A call of ToolBench's Finish answers, or gives up.
    """
    if step.kind == "call" and step.name == FINISH:
        return Decision("answer" if (step.arguments or {}).get("return_type") == "give_answer" else "give_up")
    if step.kind == "call":
        return Decision("call", step.name or "(none)", step.arguments)
    if step.kind == "broken":
        return Decision("call", "(unreadable)", None)
    return Decision("answer" if step.answer else "none")


def gold_decision(task: Task) -> Decision:
    """The first call of `ground_truth.path`, or an answer where there is none; ToolBench's Finish gives up.

    Raises:
        ValueError: the data set does not tell its arguments.
    """
    path = gold_path(task)
    if not path:
        return Decision("answer")
    if path[0].name == FINISH:
        return Decision("give_up")
    if path[0].arguments is None:
        raise ValueError(f"row {task.index}: ground_truth.path must have the call's arguments, given {path[0].name!r}")
    return Decision("call", path[0].name, path[0].arguments)
