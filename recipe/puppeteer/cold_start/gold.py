"""Write demonstrations of the puppeteer on GSM8K, by rule from its solutions.

    python -m verl_ext.recipe.puppeteer.cold_start.gold --questions data/gsm8k/train.parquet --gsm8k FOLDER \\
           --output data/cold_start/puppeteer.parquet

    orchestrator   reasoning, then conclude, then the end
    reasoning      the data set's solution, without its marks of calculations, and its number
    conclude       the number
"""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_ext.data_prep import reasoning
from verl_ext.data_prep.rows import text_field
from verl_ext.mas import Task
from verl_ext.recipe.cold_start import gold
from verl_ext.recipe.puppeteer.puppets import FINAL, REASONING, TERMINATE
from verl_ext.recipe.puppeteer.workflow import Puppeteer

POOL = ("planning", "reasoning", "critique", "conclude", "run_python")
ORDER = ("reasoning", "conclude", TERMINATE)
CALCULATION = re.compile(r"<<.*?>>")


def solutions(folder: Path | None) -> dict[str, str]:
    """Question -> solution, of GSM8K's files; None: of the hub.

    Raises:
        ValueError: a row has no question or no answer.
    """
    found = {}
    for _, (where, row) in reasoning.rows_of("gsm8k", folder):
        answer = CALCULATION.sub("", text_field(row, "answer", where))
        found[text_field(row, "question", where)] = answer.partition("####")[0].strip()
    return found


def rule_of(task: Task, solution: str) -> gold.Rule:
    """What the agents should write for a question of GSM8K."""
    number = task.ground_truth["target"][0]

    def rule(agent: str, turn: int, inputs: Mapping[str, Any]) -> str:
        if agent == "orchestrator":
            return ORDER[turn]
        said = solution if agent == "reasoning" else f"The answer is {number}."
        return f"{REASONING} {said}\n{FINAL} {number}"

    return rule


def made(given: Namespace) -> Any:
    """System, tools and rule.

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

    return Puppeteer(pool=POOL), {}, rule


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback."""
    parser = gold.options(__doc__)
    parser.add_argument("--gsm8k", type=Path, help="folder of GSM8K's files; without it the hub")
    return gold.run(parser, argv, made)


if __name__ == "__main__":
    sys.exit(main())
