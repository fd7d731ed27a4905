"""Write demonstrations of the Smurfs on API-Bank, by rule from its gold calls and their recorded results.

    python -m verl_ext.recipe.smurfs.cold_start.gold --questions data/api_bank/train.parquet --tools data/api_bank \\
           --output data/cold_start/smurfs.parquet

    planner      a sub-task per gold call: what its tool does, and the arguments that the question tells
    tool check   every sub-task needs a tool
    thought      which tool fits
    action       its number
    arguments    the gold arguments
    answer       what the tool has returned
    verifier     the sub-task is solved
    final        the answers, one after the other
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
from verl_ext.recipe.smurfs.workflow import Smurfs
from verl_ext.rewards.calls import Invocation, gold_path


def subtask(call: Invocation, documents: Mapping[str, str], question: str) -> str:
    """A gold call in words; arguments that the question does not tell come from the answers before it."""
    told = [f"{name} {value}" for name, value in (call.arguments or {}).items() if str(value) in question]
    does = documents[call.name].rstrip(". ")
    return f"{does}: {', '.join(told)}." if told else f"{does}."


class GoldRule:
    """What the agents should write for a question of API-Bank."""

    def __init__(self, task: Task, documents: Mapping[str, str]):
        self.calls = gold_path(task)
        self.tasks = [subtask(call, documents, task.question) for call in self.calls]

    def __call__(self, agent: str, turn: int, inputs: Mapping[str, Any]) -> str:
        said = getattr(self, agent)(inputs)
        return said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)

    def of(self, inputs: Mapping[str, Any]) -> Invocation:
        """The gold call of a sub-task."""
        return self.calls[self.tasks.index(inputs["task"])]

    def planner(self, inputs: Mapping[str, Any]) -> Any:
        return {"Tasks": list(dict.fromkeys(self.tasks))}

    def tool_check(self, inputs: Mapping[str, Any]) -> Any:
        return {"Reason": "It takes a call of an API.", "Choice": "Yes"}

    def thought(self, inputs: Mapping[str, Any]) -> str:
        return f"{self.of(inputs).name} does this."

    def action(self, inputs: Mapping[str, Any]) -> Any:
        name = self.of(inputs).name
        if name not in inputs["names"]:  # it has failed: this call is not recorded
            raise gold.Unsolved
        return {"ID": list(inputs["names"]).index(name), "Reason": f"{name} does this."}

    def arguments(self, inputs: Mapping[str, Any]) -> Any:
        return self.of(inputs).arguments or {}

    def answer(self, inputs: Mapping[str, Any]) -> str:
        return f"{self.of(inputs).name} has returned {inputs['result'][:200]}."

    def verifier(self, inputs: Mapping[str, Any]) -> Any:
        return {"Speak": inputs["answer"], "Status": "1"}

    def final(self, inputs: Mapping[str, Any]) -> str:
        return " ".join(answer for _, answer in inputs["solved"])


def made(given: Namespace) -> Any:
    """System, tools and rule."""
    tools = gold.api_bank(given.tools)
    documents = {name: spec.description for name, spec in tools["tool_call"].catalogue.items()}
    system = Smurfs(tool_check=True, tool_choice="id", success="path", ordered=False)
    return system, tools, lambda task: GoldRule(task, documents)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback."""
    parser = gold.options(__doc__)
    parser.add_argument("--tools", type=Path, required=True, help="folder that data_prep/tools.py api_bank has written")
    return gold.run(parser, argv, made)


if __name__ == "__main__":
    sys.exit(main())
