"""Write demonstrations of the function agent's single decisions on API-Bank, by rule from its gold calls.

    python -m verl_ext.recipe.joyagents.cold_start.gold --questions data/api_bank_turns/train.parquet \\
           --tools data/api_bank_turns --output data/cold_start/joyagents_decisions.parquet

The thought says what the gold call's function does. The whole system has conversations of its own
(recipe/joyagents/data/sft_conversations.py), by rule, too.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_ext.mas import Task
from verl_ext.recipe.cold_start import gold
from verl_ext.recipe.joyagents.decision import FunctionDecision, gold_decision


def rule_of(task: Task) -> gold.Rule:
    """What the agent should write for one decision of API-Bank."""

    def rule(agent: str, turn: int, inputs: Mapping[str, Any]) -> str:
        right = gold_decision(task)
        does = next(tool["description"] for tool in inputs["tools"] if tool["name"] == right.name)
        call = json.dumps({"name": right.name, "arguments": right.arguments}, ensure_ascii=False)
        return f"<think>{right.name}: {does}</think><tool_call>{call}</tool_call>"

    return rule


def made(given: Namespace) -> Any:
    """System, tools and rule."""
    tools = {"function_search": gold.api_bank(given.tools)["tool_search"]}
    return FunctionDecision(offered=given.offered), tools, rule_of


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback."""
    parser = gold.options(__doc__)
    parser.add_argument("--tools", type=Path, required=True, help="folder that data_prep/tools.py api_bank has written")
    parser.add_argument("--offered", type=int, default=3, help="functions in a prompt, as mas.workflow.offered (3)")
    return gold.run(parser, argv, made)


if __name__ == "__main__":
    sys.exit(main())
