"""Write demonstrations of the master and the math agent on GSM8K, by rule from its solutions.

    python -m verl_ext.recipe.joyagents.cold_start.word_problems --questions data/joyagents_math/train.parquet \\
           --gsm8k FOLDER --output data/cold_start/joyagents.parquet

    master       hands the problem to the math agent, then gives out its number
    math_agent   thinks the data set's solution, and answers with its number

The whole system at the paper's scale has conversations of its own (recipe/joyagents/data/sft_conversations.py).
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from verl_ext.mas import Task
from verl_ext.recipe.cold_start import gold, gsm8k
from verl_ext.recipe.joyagents.data.agent_chats import SPECIALIST
from verl_ext.recipe.joyagents.grammar import output
from verl_ext.recipe.joyagents.workflow import MATH, JoyAgents


def rule_of(task: Task, solution: str) -> gold.Rule:
    """What the agents should write for a question of GSM8K."""
    number = task.ground_truth["target"][0]
    call = json.dumps({"name": MATH, "arguments": {"intention": task.question}}, ensure_ascii=False)

    def rule(agent: str, turn: int, inputs: Mapping[str, Any]) -> str:
        if agent == MATH:
            return output(solution, number)
        if turn == 0:
            return output(SPECIALIST["math"][1], f"<tool_call>{call}</tool_call>")
        return output(f"The {MATH} has answered the question.", number)

    return rule


def made(given: Namespace) -> Any:
    """System, tools and rule. Raises ValueError: see `gsm8k.with_solutions`."""
    return JoyAgents(specialists=[MATH]), {}, gsm8k.with_solutions(given, rule_of)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback."""
    return gold.run(gsm8k.options(__doc__), argv, made)


if __name__ == "__main__":
    sys.exit(main())
