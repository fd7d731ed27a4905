"""Write demonstrations of DeepAgent on API-Bank, by rule from its gold calls and their recorded results.

    python -m verl_ext.recipe.deepagent.cold_start.gold --questions data/api_bank/train.parquet --tools data/api_bank \\
           --output data/cold_start/deepagent.parquet

For each gold call, the agent searches for what its tool does, unless it has been shown the tool, and calls it. Then it
answers. The loss is on whole sequences, the tools' results among them: what the agent writes is what comes before them.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_ext.mas import Task
from verl_ext.recipe.cold_start import gold
from verl_ext.recipe.deepagent.workflow import DeepAgent
from verl_ext.rewards.calls import gold_path


def outputs(task: Task, documents: Mapping[str, str]) -> Iterator[str]:
    """What the agent should write, in turn, for a question of API-Bank."""
    shown = set()
    for call in gold_path(task):
        if call.name not in shown:
            does = documents[call.name].strip()
            yield f"I need a tool. <tool_search> {does} </tool_search>"
            shown.add(call.name)
        written = json.dumps({"name": call.name, "arguments": call.arguments or {}}, ensure_ascii=False)
        yield f"I call {call.name}. <tool_call> {written} </tool_call>"
    yield "All calls are made. \\boxed{done}"


def made(given: Namespace) -> Any:
    """System, tools and rule."""
    tools = gold.api_bank(given.tools, given.top_k)
    documents = {name: spec.description for name, spec in tools["tool_call"].catalogue.items()}
    system = DeepAgent(tools="search", success="path", ordered=False, max_folds=given.max_folds, summarise=False)

    def rule_of(task: Task) -> gold.Rule:
        following = outputs(task, documents)
        return lambda agent, turn, inputs: next(following)

    return system, tools, rule_of


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback."""
    parser = gold.options(__doc__)
    parser.add_argument("--tools", type=Path, required=True, help="folder that data_prep/tools.py api_bank has written")
    parser.add_argument(
        "--top_k", type=int, default=3, help="tools that a search finds, as mas.tools.tool_search.top_k (3)"
    )
    parser.add_argument("--max_folds", type=int, default=0, help="as mas.workflow.max_folds (0)")
    return gold.run(parser, argv, made)


if __name__ == "__main__":
    sys.exit(main())
