"""ReWOO: a planner writes all tool calls at once, with places for results; a solver answers from the results.

"ReWOO: Decoupling Reasoning from Observations", Xu et al. (2023), arXiv 2305.18323.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, NamedTuple

from verl_ext.mas import Agent, Task, Unparsable
from verl_ext.recipe.baselines import prompts
from verl_ext.recipe.smurfs.baselines import Baseline, Work
from verl_ext.recipe.smurfs.grammar import ARGUMENTS, read_object
from verl_ext.recipe.smurfs.scoring import read_final
from verl_ext.recipe.smurfs.turns import Turn

# No two neighbouring parts can match the same blanks: matching stays linear in whatever a policy writes.
STEP = re.compile(r"^[ \t*]*(#E\d+)[ \t]*=[ \t]*([^{\s](?:[^{\n]*[^{\s])?)[ \t]*(\{.*)$", re.M)


class Step(NamedTuple):
    """One planned call. text: the planner's lines for it."""

    label: str
    name: str
    arguments: dict[str, Any] | None
    text: str


def read_plan(text: str, /, **_: Any) -> list[Step]:
    """The planned calls; a plan without any breaks the form, and the solver answers from nothing."""
    steps, start = [], 0
    for found in STEP.finditer(text):
        try:
            arguments = read_object(found[3], ARGUMENTS)[0]
        except Unparsable:
            arguments = None
        steps.append(Step(found[1], found[2].strip("`*"), arguments, text[start : found.end()].strip()))
        start = found.end()
    if not steps:
        raise Unparsable("there is no line `#E1 = tool {…}`", [])
    return steps


def filled(value: Any, results: dict[str, str]) -> Any:
    """`value` with the results in place of their labels, also inside texts; #E10 is not #E1."""
    if isinstance(value, str):
        return re.sub(r"#E\d+", lambda found: results.get(found[0], found[0]), value)
    if isinstance(value, list):
        return [filled(one, results) for one in value]
    return {key: filled(one, results) for key, one in value.items()} if isinstance(value, dict) else value


class ReWOO(Baseline):
    """`planner`, the calls, then `agent` as the solver. Calls beyond the budget are not made.

    It plans before any result is known, and so cannot search for tools by itself.
    """

    modules = {"faithful": prompts}
    prompt = "agent"
    sources = ("given", "retrieved")

    def others(self) -> dict[str, Agent]:
        """The planner; the solver in place of the acting agent."""
        return {
            "planner": Agent(self.prompts.rewoo_planner, read_plan, whole=True),
            "agent": Agent(partial(self.prompts.solver, **self.form), partial(read_final, **self.form)),
        }

    async def play(self, task: Task, ctx: Any) -> Work:
        """Plan, call, answer."""
        work, results = Work(task), dict[str, str]()
        evidence: list[tuple[str, str]] = []
        tools = await self.documents(ctx, task, task.question)
        planned = ctx.call("planner", question=task.question, tools=tools, budget=self.budget)
        for step in (await self.heard(ctx, work, planned, []))[: self.budget]:
            problem = "" if step.arguments is not None else "the arguments are no JSON object"
            turn = Turn("call", "", step.name, filled(step.arguments, results), problem=problem)
            results[step.label] = await self.act(ctx, work, tools, turn)
            evidence.append((step.text, results[step.label]))
        work.answer = await self.heard(ctx, work, ctx.call("agent", question=task.question, evidence=evidence), "")
        work.finished = bool(work.answer)
        return work
