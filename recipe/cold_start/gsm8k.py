"""GSM8K's solutions, for rules that write them."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from verl_ext.arguments import Parser
from verl_ext.data_prep import reasoning
from verl_ext.data_prep.rows import text_field
from verl_ext.mas import Task
from verl_ext.recipe.cold_start import gold

CALCULATION = re.compile(r"<<.*?>>")


def options(doc: str | None) -> Parser:
    """The options of a system on GSM8K."""
    parser = gold.options(doc)
    parser.add_argument("--gsm8k", type=Path, help="folder of GSM8K's files; without it the hub")
    return parser


def solutions(folder: Path | None) -> dict[str, str]:
    """Question -> solution, of GSM8K's files, without marks of calculations and the number; None: of the hub.

    Raises:
        ValueError: a row has no question or no answer.
    """
    found = {}
    for _, (where, row) in reasoning.rows_of("gsm8k", folder):
        answer = CALCULATION.sub("", text_field(row, "answer", where))
        found[text_field(row, "question", where)] = answer.partition("####")[0].strip()
    return found


def with_solutions(given: Namespace, rule_of: Callable[[Task, str], gold.Rule]) -> Callable[[Task], gold.Rule]:
    """The rule of a task, made from it and its solution.

    Raises:
        ValueError: see `solutions`; from the rule: GSM8K's files have no solution of a question.
    """
    solved = solutions(given.gsm8k)

    def rule(task: Task) -> gold.Rule:
        question = task.question.strip()
        if question not in solved:
            raise ValueError(
                f"{given.questions}: question {task.index} ({question[:60]!r}) is not among the {len(solved):,} of "
                f"--gsm8k {given.gsm8k or '(the hub)'}, which has the solutions. Remedy: questions that "
                "data_prep/reasoning.py gsm8k has written from the same files"
            )
        return rule_of(task, solved[question])

    return rule
