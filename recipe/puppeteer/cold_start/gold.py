"""Write demonstrations of the puppeteer on GSM8K, by rule from its solutions.

    python -m verl_ext.recipe.puppeteer.cold_start.gold --questions data/gsm8k/train.parquet --gsm8k FOLDER \\
           --output data/cold_start/puppeteer.parquet

    orchestrator   reasoning, then conclude, then the end
    reasoning      the data set's solution, without its marks of calculations, and its number
    conclude       the number
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from verl_ext.mas import Task
from verl_ext.recipe.cold_start import gold, gsm8k
from verl_ext.recipe.puppeteer.puppets import FINAL, REASONING, TERMINATE
from verl_ext.recipe.puppeteer.workflow import Puppeteer

POOL = ("planning", "reasoning", "critique", "conclude", "run_python")
ORDER = ("reasoning", "conclude", TERMINATE)


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
    """System, tools and rule. Raises ValueError: see `gsm8k.with_solutions`."""
    return Puppeteer(pool=POOL), {}, gsm8k.with_solutions(given, rule_of)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback."""
    return gold.run(gsm8k.options(__doc__), argv, made)


if __name__ == "__main__":
    sys.exit(main())
