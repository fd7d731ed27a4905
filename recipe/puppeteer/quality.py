"""What the paper measures of open tasks' answers: CommonGen-Hard by four terms, SRDD by three.

CommonGen-Hard: coverage of the concepts, by rule (scoring.py), and grammar, relevance and logic, by a judge. SRDD:
completeness (no placeholder is left), by rule; executability (the program runs without an error), in the sandbox;
consistency with the requirement, by a judge. The paper does not say how the terms are combined. As in its published
code, r = coverage × mean of the judge's three, and executability × completeness × consistency. (There, consistency is
the cosine of two embeddings.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from statistics import fmean
from typing import Any

from verl_ext.mas import Task, ToolFailed
from verl_ext.recipe.puppeteer.puppets import read_code
from verl_ext.recipe.puppeteer.scoring import is_open
from verl_ext.rewards.judge import Judge
from verl_ext.rewards.judged import commongen
from verl_ext.rewards.truth import targets_of

PLACEHOLDER = re.compile(r"^[ \t]*(?:pass|\.\.\.)[ \t]*(?:#.*)?$|\bTODO\b", re.MULTILINE)
ERROR = re.compile(r"^Traceback \(most recent call last\):$|^\w*Error\b|^\[The program", re.MULTILINE)


async def run_program(ctx: Any, task: Task, answer: str) -> dict[str, float]:
    """The terms of software that need no judge: completeness and executability, each 0 or 1; {} for other tasks."""
    if not task.data_source.startswith("srdd") or not answer:
        return {}
    program = read_code(answer)["program"]
    try:
        said = str(await ctx.tool("run_python", program=program))
    except ToolFailed as error:
        said = f"Error: {error}"
    return {"completeness": float(not PLACEHOLDER.search(program)), "executability": float(not ERROR.search(said))}


async def judged_terms(judge: Judge | None, task: Task, answer: str) -> dict[str, float]:
    """The terms of an open task's answer that a judge rates, each in [0, 1]; {} without a judge, and for other tasks.

    Raises:
        JudgeFailed: it gave no verdict.
    """
    if judge is None or not answer or not is_open(task.data_source):
        return {}
    if task.data_source.startswith("srdd"):
        program = read_code(answer)["program"]
        verdict = await judge.ask("software", requirement=task.question, program=program)
        return {"consistency": (verdict["consistency"] - 1) / 9}
    concepts = targets_of(task.ground_truth, f"row {task.index}")
    rated = await commongen(judge, task.question, concepts, answer)
    return {name: rated[name] for name in ("grammar", "relevance", "logic")}


def combined(score: float, terms: Mapping[str, float]) -> float:
    """r: `score` (correctness, or coverage) times the mean of a text's rated terms, or times all terms of a program."""
    if "executability" in terms:
        return score * prod(terms.values())
    return score * (fmean(terms.values()) if terms else 1.0)
