"""Write demonstrations of the chain of thought on GSM8K, by rule: a solution of the data set, then its number.

    python -m verl_ext.recipe.baselines.cold_start.cot --questions data/gsm8k/train.parquet --gsm8k FOLDER \\
           --output data/cold_start/cot.parquet
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from verl_ext.mas import Task
from verl_ext.recipe.baselines import CoT
from verl_ext.recipe.cold_start import gold, gsm8k
from verl_ext.recipe.smurfs.scoring import FINAL


def rule_of(task: Task, solution: str) -> gold.Rule:
    """What the agent should write for a question of GSM8K."""
    return lambda agent, turn, inputs: f"{solution}\n{FINAL} {task.ground_truth['target'][0]}"


def made(given: Namespace) -> Any:
    """System, tools and rule. Raises ValueError: see `gsm8k.with_solutions`."""
    return CoT(success="answer"), {}, gsm8k.with_solutions(given, rule_of)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback."""
    return gold.run(gsm8k.options(__doc__), argv, made)


if __name__ == "__main__":
    sys.exit(main())
