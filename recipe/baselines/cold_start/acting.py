"""Write demonstrations of ReAct or DFSDT on API-Bank, by rule from its gold calls and their recorded results.

    python -m verl_ext.recipe.baselines.cold_start.acting --system dfsdt --questions data/api_bank/train.parquet \\
           --tools data/api_bank --output data/cold_start/dfsdt.parquet

The agent makes the gold calls, one per output, and then finishes. DFSDT's has a row per output. ReAct's has one row per
question, with the results inside: the loss is on them, too.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_ext.mas import Task
from verl_ext.recipe.baselines import DFSDT, ReAct
from verl_ext.recipe.cold_start import gold
from verl_ext.recipe.smurfs.turns import FINISH
from verl_ext.rewards.calls import gold_path

SYSTEMS = {"react": ReAct, "dfsdt": DFSDT}


def written(thought: str, name: str, arguments: Mapping[str, Any]) -> str:
    """An output in ReAct's form, without the label of its thought."""
    return f" {thought}\nAction: {name}\nAction Input: {json.dumps(arguments, ensure_ascii=False)}"


def outputs(task: Task, documents: Mapping[str, str]) -> list[str]:
    """What the agent should write, in turn, for a question of API-Bank."""
    calls = [
        written(f"I need {call.name}: {documents[call.name].strip()}", call.name, call.arguments or {})
        for call in gold_path(task)
    ]
    answer = f"I have called {', '.join(call.name for call in gold_path(task))}."
    return [*calls, written("All calls are made.", FINISH, {"answer": answer})]


def made(given: Namespace) -> Any:
    """System, tools and rule."""
    tools = gold.api_bank(given.tools)
    documents = {name: spec.description for name, spec in tools["tool_call"].catalogue.items()}
    system = SYSTEMS[given.system](budget=given.budget, success="path", ordered=False)

    def rule_of(task: Task) -> gold.Rule:
        following = outputs(task, documents)
        # In a sequence that goes on, the label stands before the output.
        return lambda agent, turn, inputs: f"{'Thought:' if 'question' in inputs else ''}{following[turn]}"

    return system, tools, rule_of


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback."""
    parser = gold.options(__doc__)
    parser.add_argument("--system", choices=SYSTEMS, required=True, help="whose agent is demonstrated")
    parser.add_argument("--tools", type=Path, required=True, help="folder that data_prep/tools.py api_bank has written")
    parser.add_argument("--budget", type=int, default=4, help="tool calls of a question, as mas.workflow.budget (4)")
    return gold.run(parser, argv, made)


if __name__ == "__main__":
    sys.exit(main())
