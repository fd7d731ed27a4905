"""What the paper measures of open tasks' answers: CommonGen-Hard by four terms, SRDD by three.

CommonGen-Hard: coverage of the concepts, by rule, and grammar, relevance and logic, by a judge. SRDD: completeness (no
placeholder is left), by rule; executability (the program runs without an error), in the sandbox; consistency with the
requirement, by a judge. The paper does not say how the terms are combined. As in its published code, r = coverage ×
mean of the judge's three, and executability × completeness × consistency.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from statistics import fmean
from typing import Any

from verl_ext.mas import CallFailed, Task, ToolFailed
from verl_ext.recipe.puppeteer.puppets import read_code
from verl_ext.tools.catalogue.render import neutral

JUDGE = "judge"
# By the beginning of a data source's name: what a judge rates, and in which words it is asked.
RATED = {
    "commongen": {
        "grammar": "grammar and fluency",
        "relevance": "relevance: how well its parts belong together and to the concepts",
        "logic": "logic: whether what happens is plausible and free of contradictions",
    },
    "srdd": {"consistency": "consistency: whether the program does what the requirement asks for"},
}
NUMBER = re.compile(r"\d+(?:\.\d+)?")
BEST = 10.0
PLACEHOLDER = re.compile(r"^\s*(?:pass|\.\.\.)\s*(?:#.*)?$|\bTODO\b", re.MULTILINE)


async def measure(ctx: Any, task: Task, answer: str, judged: bool) -> dict[str, float]:
    """The terms of an open task's answer, each in [0, 1]; those that cannot be had are absent."""
    kind = next((kind for kind in RATED if task.data_source.startswith(kind)), None)
    if kind is None or not answer:
        return {}
    found: dict[str, float] = {}
    if kind == "srdd":
        program = read_code(answer)["program"]
        found["completeness"] = float(not PLACEHOLDER.search(program))
        found["executability"] = await _runs(ctx, program)
    for name, what in RATED[kind].items() if judged else ():
        if (rating := await _rated(ctx, task, answer, what)) is not None:
            found[name] = rating
    return found


async def _runs(ctx: Any, program: str) -> float:
    """1 if the program ends without an error."""
    try:
        said = await ctx.tool("run_python", program=program)
    except ToolFailed:
        return 0.0
    return float(not re.search(r"^Traceback \(most recent call last\):$|^\w*Error\b", str(said), re.MULTILINE))


async def _rated(ctx: Any, task: Task, answer: str, what: str) -> float | None:
    """A rating from 1 to 10 as a share of 10; None: the judge gave none."""
    try:
        said = NUMBER.search(await ctx.call(JUDGE, task=task.question, answer=neutral(answer), what=what))
    except CallFailed:
        return None
    return None if said is None else min(max(float(said[0]), 1.0), BEST) / BEST


def reward(score: float, terms: Mapping[str, float]) -> float:
    """r: `score` (correctness, or coverage) times the mean of the rated terms of a text, or all terms of a program."""
    if "executability" in terms:
        return score * prod(terms.values())
    return score * (fmean(terms.values()) if terms else 1.0)
