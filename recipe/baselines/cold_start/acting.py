"""Write demonstrations of a baseline on API-Bank, by rule from its gold calls and their recorded results.

    python -m verl_ext.recipe.baselines.cold_start.acting --system dfsdt --questions data/api_bank/train.parquet \\
           --tools data/api_bank --output data/cold_start/dfsdt.parquet

The agent makes the gold calls, one per output, and then finishes; ReWOO plans them, CodeAct writes a program for each.
A plan lists the calls, and evaluators and critics are content. DFSDT's agent has a row per output. An agent that acts
in one sequence has one row per question, with the results inside: the loss is on them, too.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_ext.mas import Task
from verl_ext.recipe.baselines import DFSDT, CodeAct, Debate, PlanAndSolve, ReAct, Reflexion, ReWOO, SelfRefine
from verl_ext.recipe.baselines.codeact import CLOSE, OPEN
from verl_ext.recipe.baselines.self_refine import GOOD
from verl_ext.recipe.cold_start import gold
from verl_ext.recipe.smurfs.scoring import FINAL
from verl_ext.recipe.smurfs.turns import FINISH
from verl_ext.rewards.calls import gold_path
from verl_ext.tools.sandbox import run_python

SYSTEMS = {
    "react": ReAct,
    "dfsdt": DFSDT,
    "plan_and_solve": PlanAndSolve,
    "reflexion": Reflexion,
    "self_refine": SelfRefine,
    "debate": Debate,
    "rewoo": ReWOO,
    "codeact": CodeAct,
}


def written(thought: str, name: str, arguments: Mapping[str, Any]) -> str:
    """An output in ReAct's form, without the label of its thought."""
    return f" {thought}\nAction: {name}\nAction Input: {_json(arguments)}"


def outputs(system: str, task: Task, documents: Mapping[str, str]) -> dict[str, list[str]]:
    """What each agent should write, in turn, for a question of API-Bank."""
    calls = [(call.name, call.arguments or {}) for call in gold_path(task)]
    steps = [f"{name}: {documents[name].strip()}" for name, _ in calls]
    answer, made = f"I have called {', '.join(name for name, _ in calls)}.", "All calls are made."
    acting = [written(f"I need {step}", *call) for step, call in zip(steps, calls, strict=True)]
    said = {
        "agent": [*acting, written(made, FINISH, {"answer": answer})],
        "planner": ["\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))],
        "evaluator": ["Yes."],
        "critic": [f"{GOOD.capitalize()}."],
        "debater": [f"{made}\n{FINAL} {answer}"],
    }
    if system == "codeact":
        programs = [_program(*call) for call in calls]
        acting = [f"I need {step}\n{program}" for step, program in zip(steps, programs, strict=True)]
        said["agent"] = [*acting, f"{made}\n{FINAL} {answer}"]
    elif system == "rewoo":
        lines = [
            f"Plan: {step}\n#E{number} = {name} {_json(arguments)}"
            for number, (step, (name, arguments)) in enumerate(zip(steps, calls, strict=True), 1)
        ]
        said |= {"planner": ["\n".join(lines)], "agent": said["debater"]}
    return said


def made(given: Namespace) -> Any:
    """System, tools and rule."""
    tools = gold.api_bank(given.tools) | {"run_python": run_python()}
    documents = {name: spec.description for name, spec in tools["tool_call"].catalogue.items()}
    system = SYSTEMS[given.system](budget=given.budget, success="path", ordered=False)

    def rule_of(task: Task) -> gold.Rule:
        following = outputs(given.system, task, documents)
        label = "" if given.system in ("rewoo", "codeact") else "Thought:"

        def rule(agent: str, turn: int, inputs: Mapping[str, Any]) -> str:
            text = following[agent][turn % len(following[agent])]  # debaters say the same
            # In a sequence that goes on, the label stands before the output.
            return f"{label if agent == 'agent' and 'question' in inputs else ''}{text}"

        return rule

    return system, tools, rule_of


def _program(name: str, arguments: Mapping[str, Any]) -> str:
    given = "".join(f", {key}={value!r}" for key, value in arguments.items())
    return f"{OPEN}\nprint(call_tool({name!r}{given}))\n{CLOSE}"


def _json(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback."""
    parser = gold.options(__doc__)
    parser.add_argument("--system", choices=SYSTEMS, required=True, help="whose agents are demonstrated")
    parser.add_argument("--tools", type=Path, required=True, help="folder that data_prep/tools.py api_bank has written")
    parser.add_argument("--budget", type=int, default=4, help="of a question, as mas.workflow.budget (4)")
    return gold.run(parser, argv, made)


if __name__ == "__main__":
    sys.exit(main())
